"""The decorators of shared-tensor 0.1: a decorated function is called at the gateway, by its name.

>>> from sharedtensor.remote.provider import AsyncSharedTensorProvider
>>> provider = AsyncSharedTensorProvider()
>>> @provider.share()
... def add_numbers(a, b):
...     return a + b

The gateway runs functions that the owner or its workers have registered. It imports nothing, so a worker offers the
same function: ``c.offer(add_numbers=add_numbers)``. There the variable ``__SHARED_TENSOR_SERVER_MODE__=true`` leaves
the functions as they are.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

from .jsonrpc import Client, TaskInfo

F = TypeVar("F", bound=Callable[..., Any])

_rank = int(os.environ.get("RANK", "0"))


class SharedTensorProvider:
    """Calls decorated functions at a gateway.

    :param server_port: the HTTP port of the gateway. The default is 2537 and the rank of this process.
    :param default_enabled: whether functions are called at the gateway if ``__SHARED_TENSOR_ENABLED__`` is not set.
    :param host: of the gateway.
    :param options: of `jsonrpc.Client`.
    """

    def __init__(
        self,
        server_port: int = 2537 + _rank,
        verbose_debug: bool = False,
        default_enabled: bool = True,
        *,
        host: str = "127.0.0.1",
        **options: Any,
    ) -> None:
        self.server_port = server_port
        self.verbose_debug = verbose_debug
        self._url = f"http://{host}:{server_port}"
        self._options = options
        self._client: Client | None = None
        enabled = os.environ.get("__SHARED_TENSOR_ENABLED__", "true" if default_enabled else "false") == "true"
        self._remote = enabled and os.environ.get("__SHARED_TENSOR_SERVER_MODE__", "false") != "true"

    @property
    def client(self) -> Client:
        """The client, which is created on first use."""
        if self._client is None:
            self._client = Client(self._url, **self._options)
        return self._client

    def share(
        self,
        name: str | None = None,
        *,
        wait: bool = True,
        singleton: bool = True,
        singleton_key_formatter: str | None = None,
    ) -> Callable[[F], F]:
        """Decorates a function.

        :param name: of the function at the gateway; that of the function by default.
        :param singleton: has no effect. The owner caches results of functions that are registered with a cache.
        :param singleton_key_formatter: has no effect.
        :param wait: whether a call returns the result, or the id of a task.
        """

        def decorate(function: F) -> F:
            if not self._remote:
                return function
            remote: str = name or function.__name__

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                return self._run(remote, args, kwargs) if wait else self.client.submit(remote, *args, **kwargs)

            return call  # type: ignore[return-value]

        return decorate

    def _run(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.client.call_function(name, args, kwargs)

    def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            self._client.close()


class AsyncSharedTensorProvider(SharedTensorProvider):
    """Runs decorated functions as tasks.

    :param poll_interval: has no effect, because the gateway reports the end of a task.
    """

    def __init__(
        self,
        server_port: int = 2537 + _rank,
        verbose_debug: bool = False,
        poll_interval: float = 1.0,
        default_enabled: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(server_port, verbose_debug, default_enabled, **options)
        self.poll_interval = poll_interval

    def _run(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.client.wait(self.client.submit(name, *args, **kwargs))

    def get_task_status(self, task_id: str) -> TaskInfo:
        """Returns the state of a task."""
        return self.client.status(task_id)

    def get_task_result(self, task_id: str) -> Any:
        """Returns the result of a completed task."""
        return self.client.result(task_id)

    def wait_for_task(
        self, task_id: str, timeout: float | None = None, callback: Callable[[TaskInfo], None] | None = None
    ) -> Any:
        """Waits for a task and returns its result."""
        return self.client.wait(task_id, timeout, callback)

    def cancel_task(self, task_id: str) -> bool:
        """Cancels a task. Returns False if it had ended."""
        return self.client.cancel(task_id)

    def list_tasks(self, status: str | None = None) -> dict[str, TaskInfo]:
        """Returns the tasks by id."""
        return {task.task_id: task for task in self.client.tasks(status)}
