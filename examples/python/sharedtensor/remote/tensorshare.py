"""The client of tensorshare: requests that do not block, with callbacks.

>>> from sharedtensor.remote.tensorshare import TensorShare
>>> ts = TensorShare("gpu7", 4222)
>>> ts.put("data", {"a": tensor})
>>> ts.peek("data", print)                       # {'status': 'OK', 'data': {'a': ...}}

Requests are executed one at a time, in order. Callbacks run in one thread, in order. The server is a gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..errors import Error
from .background import Background
from .bins import Item, Store

Callback = Callable[[dict[str, Any]], Any]


def content(items: list[Item]) -> Any:
    """Returns what tensorshare returns for a bin: a single value, or the list of several. A list that was put is
    extended by the items after it."""
    values = [item.value for item in items]
    if len(values) == 1:
        return values[0]
    return [*values[0], *values[1:]] if items[0].put and isinstance(values[0], list) else values


class TensorShare:
    """A client of the bins of a gateway.

    :param port: of NATS.
    :param options: of `bins.Store.open`, such as `namespace`, `token` and `framework`.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 4222, **options: Any) -> None:
        self._background = Background()
        self._callbacks = ThreadPoolExecutor(1, "sharedtensor-callback")
        self._stopped = threading.Event()
        self._listeners: dict[str, asyncio.Task[None]] = {}
        try:
            self._store = self._background.run(Store.open(f"nats://{host}:{port}", **options))
            self._queue = self._background.run(self._make_queue())
        except BaseException:
            self._background.close()
            self._callbacks.shutdown()
            raise

    async def _make_queue(self) -> asyncio.Queue[tuple[Callable[[], Awaitable[Any]], Callback | None]]:
        queue: asyncio.Queue[tuple[Callable[[], Awaitable[Any]], Callback | None]] = asyncio.Queue()
        self._worker = asyncio.create_task(self._serve(queue))
        return queue

    async def _serve(self, queue: asyncio.Queue[tuple[Callable[[], Awaitable[Any]], Callback | None]]) -> None:
        while True:
            request, callback = await queue.get()
            try:
                data = await request()
                answer = {"status": "OK"} if data is None else {"status": "OK", "data": data}
            except Error as err:
                answer = {"status": "ERR", "msg": str(err)}
            except Exception as err:  # the requests behind it are executed all the same
                answer = {"status": "ERR", "msg": f"{type(err).__name__}: {err}"}
            self._deliver(callback, answer)

    def _deliver(self, callback: Callback | None, answer: dict[str, Any]) -> None:
        if callback is not None:
            with contextlib.suppress(RuntimeError):  # stopped
                self._callbacks.submit(callback, answer)

    def _request(self, request: Callable[[], Awaitable[Any]], callback: Callback | None) -> None:
        if self._stopped.is_set():
            self._deliver(callback, {"status": "ERR", "msg": "the client is stopped"})
            return
        self._background.loop.call_soon_threadsafe(self._queue.put_nowait, (request, callback))

    def put(self, bin: str, obj: Any, callback: Callback | None = None) -> None:
        """Replaces the content of a bin."""

        async def request() -> None:
            await self._store.put(bin, obj)

        self._request(request, callback)

    def append(self, bin: str, obj: Any, callback: Callback | None = None) -> None:
        """Adds a value to a bin."""

        async def request() -> None:
            await self._store.append(bin, obj)

        self._request(request, callback)

    def peek(self, bin: str, callback: Callback) -> None:
        """Passes the content of a bin to the callback."""

        async def request() -> Any:
            return self._found(bin, await self._store.peek(bin))

        self._request(request, callback)

    def get(self, bin: str, callback: Callback) -> None:
        """Passes the content of a bin to the callback and removes it."""

        async def request() -> Any:
            return self._found(bin, await self._store.take(bin))

        self._request(request, callback)

    @staticmethod
    def _found(bin: str, items: list[Item]) -> Any:
        if not items:
            raise Error(f"Failed to retrieve data: the bin {bin!r} is empty")
        return content(items)

    def delete(self, bin: str, callback: Callback | None = None) -> None:
        """Removes the content of a bin."""

        async def request() -> None:
            await self._store.delete(bin)

        self._request(request, callback)

    def list(self, callback: Callback) -> None:
        """Passes the number of items of each bin to the callback."""
        self._request(self._store.list, callback)

    def listen(self, bin: str, callback: Callback) -> None:
        """Calls the callback after each change of a bin with "bin" and "n_items". A later callback replaces it."""

        async def request() -> None:
            await self._ignore(bin)
            started = asyncio.Event()
            task = self._listeners[bin] = asyncio.create_task(self._listen(bin, callback, started))
            waiting = asyncio.create_task(started.wait())
            await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if task.done():
                task.result()

        self._request(request, None)

    async def _listen(self, bin: str, callback: Callback, started: asyncio.Event) -> None:
        try:
            async for event in self._store.listen(bin, initial=True):
                if event.op:
                    self._deliver(callback, {"status": "OK", "bin": bin, "n_items": event.items})
                started.set()
        except Exception as err:
            self._deliver(callback, {"status": "ERR", "bin": bin, "msg": f"no longer listening: {err}"})
            raise

    async def _ignore(self, bin: str) -> None:
        task = self._listeners.pop(bin, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def ignore(self, bin: str, callback: Callback | None = None) -> None:
        """Ends `listen`."""

        async def request() -> None:
            await self._ignore(bin)

        self._request(request, callback)

    def start(self) -> None:
        """Blocks until `stop`."""
        self._stopped.wait()
        self._close()

    def stop(self) -> None:
        """Ends the client. Requests that have not begun are dropped."""
        self._stopped.set()

    def _close(self) -> None:
        with contextlib.suppress(Error):
            self._background.run(self._store.close())
        self._background.close()
        self._callbacks.shutdown()

    def __enter__(self) -> TensorShare:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._close()
