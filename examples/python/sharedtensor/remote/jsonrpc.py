"""Functions and tasks over JSON-RPC.

>>> from sharedtensor.remote.jsonrpc import Client
>>> with Client("https://gpu7:2537", token=token) as c:
...     y = c.call("transform", x=t, scale=2.0)      # tensors of numpy or torch, in and out
...     task = c.submit("build_model", hidden_size=512)
...     model = c.wait(task, timeout=60)

`sharedtensor.remote.provider` has the decorators of shared-tensor 0.1.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import frameworks
from ..errors import (
    ApplicationError,
    DeadlineExceededError,
    EndpointNotFoundError,
    Error,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ProtocolError,
    ResourceExhaustedError,
    SerializationError,
    TaskCancelledError,
    TaskError,
    TaskFailedError,
    UnavailableError,
    class_of,
)
from .http import Connections
from .values import from_json, to_json

OVER = frozenset({"completed", "failed", "cancelled"})
"""The states of a task that has ended."""

_CLASSES: dict[int, type[Error]] = {
    -32602: InvalidArgumentError,
    -32603: InternalError,
    -32001: EndpointNotFoundError,
    -32002: ApplicationError,
    -32003: SerializationError,
    -32004: NotFoundError,
    -32005: UnavailableError,
    -32006: ResourceExhaustedError,
    -32007: PermissionDeniedError,
    -32008: DeadlineExceededError,
    -32009: TaskError,
}
_CHANGES = frozenset({"call_function", "execute_function", "submit_task", "cancel_task", "publish_from", "withdraw"})
_SLICE = 20.0  # seconds of one wait_task request, so that proxies do not end it


@dataclass(frozen=True)
class TaskInfo:
    """The state of a task.

    :ivar status: pending, running, completed, failed or cancelled.
    :ivar done: progress, of `total`; 0 of 0 if the task reports none.
    :ivar created_at: RFC 3339; the other times are "" until they are known.
    """

    task_id: str
    endpoint: str
    status: str
    done: int = 0
    total: int = 0
    message: str = ""
    created_at: str = ""
    started_at: str = ""
    completed_at: str = ""
    error_type: str = ""
    error_message: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether the task has ended."""
        return self.status in OVER

    @staticmethod
    def _of(sent: Mapping[str, Any]) -> TaskInfo:
        known = {name: sent[name] for name in TaskInfo.__dataclass_fields__ if name in sent}
        if sent.get("object_id"):
            known["metadata"] = {"object_id": sent["object_id"]}
        return TaskInfo(**known)


def _error(sent: Mapping[str, Any]) -> Error:
    code, message = int(sent.get("code", 0)), str(sent.get("message", ""))
    data = sent.get("data") if isinstance(sent.get("data"), dict) else {}
    data = {**(data or {}), "rpc_code": code}
    kind = str(data.get("type", ""))
    cls = _CLASSES.get(code, ProtocolError)
    if data.get("code"):
        found = class_of(int(data["code"]), kind)
        if issubclass(found, cls) or cls is TaskError:
            cls = found
    return cls(message, type=kind, data=data)


class Client:
    """A client of a gateway. Its methods may be used by several threads.

    A failed request raises the class of its code: see `sharedtensor.errors`. Its `data` has "rpc_code" and, for calls,
    "outcome": "not_run", "failed", or "unknown" if the function may have run.

    :param url: of the gateway, ``http://HOST:PORT`` or https.
    :param token: a token of the gateway, "" for none.
    :param timeout: seconds that a request may take, if the call names no other limit.
    :param framework: "torch" or "numpy", of the tensors in results; torch if it is installed.
    :param context: for https, with the authorities and a client certificate.
    :param insecure_token: send the token without TLS also to another host, where the network can read it.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:2537",
        *,
        token: str = "",
        timeout: float = 600.0,
        framework: str | None = None,
        context: ssl.SSLContext | None = None,
        insecure_token: bool = False,
    ) -> None:
        self.timeout = timeout
        self._framework = frameworks.choose(framework)
        self._http = Connections(url, token, context, insecure_token)

    def request(self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Any:
        """Sends any method of the gateway and returns its result. Tensors in `params` are encoded."""
        limit = self.timeout if timeout is None else timeout
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": to_json(dict(params or {}))}
        text = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
        answer = self._http.post("/jsonrpc", text, timeout=limit, repeat=method not in _CHANGES)
        try:
            answer = json.loads(answer)
            if "error" in answer:
                raise _error(answer["error"])
            return from_json(answer["result"], self._framework)
        except (ValueError, KeyError, TypeError, AttributeError) as err:
            if isinstance(err, Error):
                raise
            raise ProtocolError(f"the gateway sent no JSON-RPC response: {err}") from err

    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a function and returns its result. The results of a stream are returned as a list."""
        return self.call_function(function, args, kwargs)

    def call_function(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Like `call`, with a limit in seconds. The function is cancelled when it expires."""
        return self.request("call_function", self._call(name, args, kwargs, timeout), timeout=self._grace(timeout))

    def _call(self, name: str, args: Sequence[Any], kwargs: Any, timeout: float | None) -> dict[str, Any]:
        limit = self.timeout if timeout is None else timeout
        return {"name": name, "args": list(args), "kwargs": dict(kwargs or {}), "timeout": limit}

    def _grace(self, timeout: float | None) -> float:
        """Returns the limit of the request: longer than that of the call, whose error is more exact."""
        return (self.timeout if timeout is None else timeout) + 5

    def submit(self, function: str, /, *args: Any, **kwargs: Any) -> str:
        """Starts a call as a task and returns its id. The task continues after this client."""
        params = {"name": function, "args": list(args), "kwargs": kwargs}
        return str(self.request("submit_task", params)["task_id"])

    def status(self, task_id: str) -> TaskInfo:
        """Returns the state of a task."""
        return TaskInfo._of(self.request("get_task_status", {"task_id": task_id}))

    def wait(
        self, task_id: str, timeout: float | None = None, callback: Callable[[TaskInfo], None] | None = None
    ) -> Any:
        """Waits until a task has ended and returns its result.

        :param timeout: in seconds; without one there is no limit.
        :param callback: receives the state after each interval of at most 20 seconds, and the last one.

        Raises TaskFailedError, TaskCancelledError, or DeadlineExceededError if the task still runs.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE if until is None else min(_SLICE, until - time.monotonic())
            params = {"task_id": task_id, "timeout": max(left, 0.001)}
            info = TaskInfo._of(self.request("wait_task", params, timeout=_SLICE + 30))
            if callback is not None:
                callback(info)
            if info.over:
                break
            if until is not None and time.monotonic() >= until:
                raise DeadlineExceededError(f"task {task_id!r} did not complete within {timeout} seconds")
        if info.status == "failed":
            raise TaskFailedError(info.error_message or f"task {task_id!r} failed", type=info.error_type or "failed")
        if info.status == "cancelled":
            raise TaskCancelledError(f"task {task_id!r} was cancelled")
        return self.result(task_id)

    def result(self, task_id: str) -> Any:
        """Returns the result of a completed task. Raises TaskError for others."""
        return self.request("get_task_result", {"task_id": task_id})

    def cancel(self, task_id: str) -> bool:
        """Cancels a task. Returns False if it had ended."""
        return bool(self.request("cancel_task", {"task_id": task_id})["cancelled"])

    def tasks(self, status: str | None = None) -> list[TaskInfo]:
        """Returns the tasks in the order of submission, or those in one state."""
        sent = self.request("list_tasks", {"status": status} if status else {})
        return [TaskInfo._of(one) for one in sent["tasks"]]

    def functions(self) -> list[dict[str, Any]]:
        """Returns the functions with their arguments and results."""
        return list(self.request("list_functions")["functions"])

    def info(self) -> dict[str, Any]:
        """Returns what the gateway reports about itself and its owner."""
        return dict(self.request("get_server_info"))

    def ping(self, timeout: float = 5.0) -> bool:
        """Reports whether the gateway answers."""
        try:
            return bool(self.request("ping", timeout=timeout)["pong"])
        except Error:
            return False

    def close(self) -> None:
        """Closes the connections. Later requests fail with ClosedError."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
