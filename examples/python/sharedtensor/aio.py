"""The client for asyncio.

>>> async with await aio.connect() as c:
...     w = await c.acquire("llm")
...     y = await c.call("transform", x=t, scale=2.0)
...     async for step in c.stream("spectral_norm", a=t, steps=10): ...

Cancelling an ``await`` cancels the request at the server.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from . import calls, catalog, client, frameworks, messages, operations, tasks
from .calls import NOTHING, Stream
from .endpoints import Endpoints
from .errors import CanceledError, ClosedError, DeadlineExceededError
from .frames import Frame
from .models import Model
from .op import Op
from .operations import Operation
from .serverinfo import ServerInfo
from .session import GRACE, Pending, Session
from .tasks import TaskInfo, TaskList
from .watching import Event, Follower, Watch

T = TypeVar("T")


async def connect(path: str | os.PathLike[str] | None = None, **options: Any) -> Client:
    """Connects to an owner; the options are those of `sharedtensor.connect`."""
    return Client(await asyncio.to_thread(client.connect, path, **options))


class Client:
    """The same as `sharedtensor.Client`, to await. Made by `connect`, or over a client that is there: both may be used
    at once.

    :ivar sync: the blocking client underneath.
    """

    def __init__(self, sync: client.Client) -> None:
        self.sync = sync

    async def _run(self, make: Callable[[Session], Operation[T]], timeout: float | None = None) -> T:
        # What may block or copies memory (connecting, laying out tensors, a send to a server that does not read) has a
        # thread; waiting has none.
        def start() -> tuple[Session, Operation[T], Pending]:
            session = self.sync._session()
            operation = make(session)
            return session, operation, self.sync._start(operation, session, limit)

        limit = self.sync._timeout if timeout is None else timeout
        session, operation, pending = await _uncut(asyncio.to_thread(start), self._drop)
        try:
            frame = await _answer(session, pending, limit)
        finally:
            operation.close()
        result: T = operation.take(frame, session)
        return result

    @staticmethod
    def _drop(started: tuple[Session, Operation[Any], Pending]) -> None:
        session, operation, pending = started
        session.cancel(pending, CanceledError("the caller stopped waiting"))
        operation.close()

    async def acquire(
        self, name: str, version: int = 0, *, framework: str | None = None, timeout: float | None = None
    ) -> Model:
        """Attaches to a version, 0 for the newest."""
        chosen = frameworks.choose(framework or self.sync._framework)
        return await self._run(lambda _: catalog.acquire(name, version, chosen, self.sync._leases), timeout)

    async def publish(
        self,
        name: str,
        state_dict: Mapping[str, Any],
        *,
        source: str = "",
        metadata: Mapping[str, str] | None = None,
        digests: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Publishes a state dict as the next version of a name and returns that version."""
        return await self._run(
            lambda session: catalog.publish(
                name, state_dict, session, self.sync._pool, source=source, metadata=metadata or {}, digests=digests
            ),
            timeout,
        )

    async def withdraw(self, name: str) -> None:
        """Takes a name off the books."""
        await self._run(lambda _: operations.withdraw(name))

    async def list(self) -> catalog.Models:
        """Returns what is published."""
        found = await self._run(lambda _: catalog.listing())
        while found.next != ("", 0):
            after, version = found.next
            found.add(await self._run(lambda _, after=after, version=version: catalog.listing(after, version)))  # type: ignore[misc]
        return found

    async def inspect(self, name: str, version: int = 0) -> client.Inspection:
        """Returns what is known of a name."""
        return client.Inspection(await self._run(lambda _: operations.info(name, version, True)))

    async def call(
        self,
        endpoint: str,
        value: Any = NOTHING,
        /,
        *,
        timeout: float | None = None,
        writable: bool = False,
        framework: str | None = None,
        **fields: Any,
    ) -> Any:
        """Calls a function of the owner and returns its result."""
        chosen = frameworks.choose(framework or self.sync._framework)
        argument = calls.argument(value, fields)
        found = await self._run(
            lambda session: calls.call(
                endpoint, argument, session, self.sync._pool, chosen, self.sync._track, writable=writable
            ),
            timeout,
        )
        return found[0]

    async def stream(
        self, endpoint: str, value: Any = NOTHING, /, *, framework: str | None = None, **fields: Any
    ) -> AsyncIterator[Any]:
        """Calls a function that yields results; the iterator that is returned has them as they come."""
        chosen = frameworks.choose(framework or self.sync._framework)
        argument = calls.argument(value, fields)

        def begin() -> Stream[Any]:
            return Stream(endpoint, argument, self.sync._session(), self.sync._pool, chosen)

        stream = await _uncut(asyncio.to_thread(begin), Stream.close)
        try:
            while True:
                item = await asyncio.to_thread(stream.wait_item) if stream.empty() else stream.wait_item()
                try:
                    yield stream.take(item)
                except StopIteration:
                    return
        finally:
            stream.close()

    async def submit(self, endpoint: str, value: Any = NOTHING, /, **fields: Any) -> Task:
        """Starts a call as a task."""
        argument = calls.argument(value, fields)
        return Task(self, await self._run(lambda session: tasks.submit(endpoint, argument, session, self.sync._pool)))

    async def task(self, id: str) -> Task:
        """Returns a task by its id."""
        return Task(self, await self._run(lambda _: tasks.info(id)))

    async def tasks(self, states: Iterable[str] = (), *, endpoint: str = "", mine: bool = False) -> TaskList:
        """Returns the tasks of the owner."""
        return await self._run(lambda _: tasks.listing([*states], endpoint, mine))

    async def endpoints(self) -> Endpoints:
        """Returns the functions that the owner has."""
        return await self._run(
            lambda _: operations.mapped(
                Op.ENDPOINTS, messages.Endpoints(), messages.EndpointsListed, lambda a: Endpoints(a.endpoints)
            )
        )

    async def info(self) -> ServerInfo:
        """Returns the state of the server."""
        return await self._run(lambda _: operations.mapped(Op.SERVER_INFO, None, messages.ServerInfo, ServerInfo))

    async def watch(self, *names: str) -> AsyncIterator[Event]:
        """Yields what happens to names, beginning with how they are."""
        queue: asyncio.Queue[Event] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tell(event: Event) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, event)

        watch = await _uncut(asyncio.to_thread(Watch, self.sync, names, tell), Watch.close)
        try:
            while True:
                yield await queue.get()
        finally:
            watch.close()

    async def follow(self, name: str, *, framework: str | None = None) -> AsyncIterator[Model]:
        """Yields the newest version of a name, then each time a newer one is there the newest."""
        follower = await _uncut(asyncio.to_thread(Follower, self.sync, name, framework), Follower.close)
        version = 0
        try:
            while True:
                model = await _blocking(follower, version)
                version = model.version
                yield model
        finally:
            follower.close()

    async def close(self) -> None:
        """Ends the connection. Tensors stay valid for as long as they are referenced."""
        await asyncio.to_thread(self.sync.close)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Task:
    """A task of the server, to await.

    :ivar info: the newest that is known.
    """

    def __init__(self, owner: Client, info: TaskInfo) -> None:
        self._client = owner
        self.id = info.id
        self.info = info

    async def wait(self, *, progress: Callable[[TaskInfo], object] | None = None, timeout: float | None = None) -> Any:
        """Waits for the end and returns the result. `progress` is called with each change that is seen."""

        async def follow() -> None:
            after = 0
            while not self.info.over:
                self.info = await self._client._run(partial(_change, self.id, after, progress is not None))
                if progress is not None:
                    progress(self.info)
                after = self.info.seq

        try:
            await asyncio.wait_for(follow(), timeout)
        except asyncio.TimeoutError:
            raise DeadlineExceededError(f"the task has not ended within {timeout:g} s") from None
        return await self.result()

    async def result(self) -> Any:
        """Returns the result of a task that has completed, or raises why there is none."""
        chosen = frameworks.choose(self._client.sync._framework)
        found = await self._client._run(lambda _: tasks.result(self.id, chosen, self._client.sync._track))
        return found[0]

    async def cancel(self) -> bool:
        """Cancels it. Returns False if it had ended."""
        return await self._client._run(lambda _: tasks.cancel(self.id))

    def __repr__(self) -> str:
        return f"<sharedtensor.aio.Task {self.info!r}>"


def _change(id: str, after: int, each: bool, _: Session) -> Operation[TaskInfo]:
    """Asks for the next change of a task, for its state where none is known, or for its end."""
    return tasks.info(id) if each and not after else tasks.wait(id, after if each else 0)


async def _answer(session: Session, pending: Pending, timeout: float | None) -> Frame:
    """Waits for the answer of a request; cancels that when the wait is cancelled."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def set_done() -> None:
        if not done.done():
            done.set_result(None)

    def wake(_: Pending) -> None:
        try:
            loop.call_soon_threadsafe(set_done)
        except RuntimeError:
            pass  # the loop is closed, and nobody waits

    pending.when_done(wake)
    try:
        await asyncio.wait_for(done, None if timeout is None else timeout + GRACE)
    except asyncio.TimeoutError:
        session.cancel(pending, DeadlineExceededError(f"no answer within {timeout:g} s"))
    except BaseException:
        session.cancel(pending, CanceledError("the caller stopped waiting"))
        raise
    return pending.result()


async def _uncut(work: Any, drop: Callable[[Any], None]) -> Any:
    """Awaits work in a thread. When the wait is cancelled, what the work makes all the same is given to `drop`."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda t: None if t.cancelled() or t.exception() else drop(t.result()))
        raise


async def _blocking(follower: Follower, version: int) -> Model:
    while True:
        waiting = asyncio.to_thread(follower.wait_newer, version, 0.5)
        try:
            found: Model = await _uncut(waiting, lambda _: None)
            return found
        except DeadlineExceededError:
            continue
        except ClosedError:
            raise StopAsyncIteration from None


__all__ = ["Client", "Task", "connect"]
