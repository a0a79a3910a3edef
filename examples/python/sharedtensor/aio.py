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
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from . import calls, catalog, client, frameworks, messages, objects, operations, tasks
from .calls import NOTHING, Stream
from .connection import Again
from .endpoints import Endpoints
from .errors import CanceledError, ClosedError, ConnectionLostError, DeadlineExceededError, Error, UnavailableError
from .frames import Frame
from .frameworks import Framework
from .inspection import Inspection
from .manifest import TensorSpec
from .models import Model
from .op import Op
from .operations import Operation
from .serverinfo import ServerInfo
from .session import GRACE, Pending, Session
from .tasks import TaskInfo, TaskList, TaskWatch
from .watching import Event, Follower, Watch
from .writer import VersionWriter

T = TypeVar("T")


async def connect(path: str | os.PathLike[str] | None = None, **options: Any) -> Client:
    """Connects to an owner, with the options of `sharedtensor.connect`."""
    return Client(await asyncio.to_thread(lambda: client.connect(path, **options)))


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
        again: Again | None = None
        while True:
            session, operation, pending = await _uncut(asyncio.to_thread(start), self._drop)
            again = again or Again(operation.repeatable)
            try:
                frame = await _answer(session, pending, limit)
                break
            except (ConnectionLostError, UnavailableError) as err:
                if not self.sync._repeats(again, err, session):
                    raise
            except Error as err:
                operation.explain(err)
                raise
            finally:
                operation.close()
        result: T = operation.take(frame, session)
        return result

    @staticmethod
    def _drop(started: tuple[Session, Operation[Any], Pending]) -> None:
        session, operation, pending = started
        session.cancel(pending, CanceledError("the caller stopped waiting"))
        operation.close()

    async def _chosen(self, framework: str | None) -> Framework:
        """Returns the library for tensors. If that has to import torch, which takes seconds, a thread does it."""
        name = framework or self.sync._framework
        if frameworks.must_import(name):
            return await asyncio.to_thread(frameworks.choose, name)
        return frameworks.choose(name)

    async def acquire(
        self,
        name: str,
        version: int = 0,
        *,
        framework: str | None = None,
        wait: float = 0.0,
        timeout: float | None = None,
    ) -> Model:
        """Attaches to a version, 0 for the newest. `wait` is how many seconds to wait for a name that is not published
        yet."""
        chosen = await self._chosen(framework)
        if wait:
            await self._published(name, chosen, wait)
        return await self._run(lambda _: catalog.acquire(name, version, chosen, self.sync._leases), timeout)

    async def _published(self, name: str, framework: str, wait: float) -> None:
        follower, signal = await self._follower(name, framework)

        async def first() -> None:
            while not follower.ready(0):
                await signal.wait()

        try:
            await asyncio.wait_for(first(), wait)
        except asyncio.TimeoutError:
            raise DeadlineExceededError(f"{name!r} was not published within {wait:g} s") from None
        finally:
            follower.close()

    async def _follower(self, name: str, framework: str | None) -> tuple[Follower, _Signal]:
        signal = _Signal()
        make = partial(Follower, self.sync, name, framework, signal.set)
        return await _uncut(asyncio.to_thread(make), Follower.close), signal

    async def publish(
        self,
        name: str,
        state_dict: Mapping[str, Any],
        *,
        source: str = "",
        metadata: Mapping[str, str] | None = None,
        digests: bool = False,
        owner_digests: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Publishes a state dict as the next version of a name and returns that version."""
        return await self._run(
            lambda session: catalog.publish(
                name,
                state_dict,
                session,
                self.sync._pool,
                source=source,
                metadata=metadata or {},
                digests=digests,
                owner_digests=owner_digests,
            ),
            timeout,
        )

    async def create(
        self, name: str, specs: Mapping[str, Any] | Iterable[TensorSpec], *, framework: str | None = None
    ) -> VersionWriter:
        """Returns the next version of a name as writable tensors in shared memory. `commit` publishes it."""
        make = partial(self.sync.create, name, specs, framework=framework)
        return await _uncut(asyncio.to_thread(make), VersionWriter.abort)

    async def commit(
        self,
        version: VersionWriter,
        *,
        source: str = "",
        metadata: Mapping[str, str] | None = None,
        digests: bool = False,
        owner_digests: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Publishes a version that `create` returned, without a copy, and returns its number. Cancelling the await does
        not cancel the publication."""
        return await asyncio.to_thread(
            version.commit,
            source=source,
            metadata=metadata,
            digests=digests,
            owner_digests=owner_digests,
            timeout=timeout,
        )

    async def digest(self, name: str, version: int = 0, *, timeout: float | None = None) -> bytes:
        """Waits for the digest of a version that its owner computes, and returns its 32 bytes."""
        return await self._run(lambda session: operations.digests(name, version, session), timeout)

    async def withdraw(self, name: str) -> None:
        """Withdraws a name."""
        await self._run(lambda _: operations.withdraw(name))

    async def rollback(self, name: str, version: int = 0) -> int:
        """Publishes the memory of a superseded version again and returns the new number."""
        return await self._run(lambda _: operations.rollback(name, version))

    async def list(self) -> catalog.Models:
        """Returns what is published."""
        found = await self._run(lambda _: catalog.listing())
        while found.next != ("", 0):
            after, version = found.next
            found.add(await self._run(lambda _, after=after, version=version: catalog.listing(after, version)))  # type: ignore[misc]
        return found

    async def inspect(self, name: str, version: int = 0) -> Inspection:
        """Returns the versions of a name and the tensors of one version."""
        return Inspection(await self._run(lambda _: operations.info(name, version, True)))

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
        return (await self._call(endpoint, calls.argument(value, fields), timeout, writable, framework))[0]

    async def call_object(
        self,
        endpoint: str,
        value: Any = NOTHING,
        /,
        *,
        timeout: float | None = None,
        framework: str | None = None,
        **fields: Any,
    ) -> calls.Object:
        """Calls a function whose results are managed and returns the object."""
        found = await self._call(endpoint, calls.argument(value, fields), timeout, False, framework)
        return calls.object_of(endpoint, found)

    async def _call(
        self, endpoint: str, argument: Any, timeout: float | None, writable: bool, framework: str | None
    ) -> tuple[Any, calls.Object | None]:
        chosen = await self._chosen(framework)
        return await self._run(
            lambda session: calls.call(
                endpoint, argument, session, self.sync._pool, chosen, self.sync._track, writable=writable
            ),
            timeout,
        )

    async def stream(
        self, endpoint: str, value: Any = NOTHING, /, *, framework: str | None = None, **fields: Any
    ) -> AsyncIterator[Any]:
        """Calls a function that yields results; the iterator that is returned has them as they come."""
        chosen = await self._chosen(framework)
        argument = calls.argument(value, fields)

        signal = _Signal()

        def begin() -> Stream[Any]:
            return Stream(endpoint, argument, self.sync._session(), self.sync._pool, chosen, signal.set)

        stream = await _uncut(asyncio.to_thread(begin), Stream.close)
        try:
            while True:
                while stream.empty():
                    await signal.wait()
                try:
                    yield next(stream)
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

    async def watch_tasks(self, *, id: str = "", endpoint: str = "", mine: bool = False) -> AsyncIterator[TaskInfo]:
        """Yields tasks as they change, beginning with the present ones. Raises the error that ended the connection."""
        signal = _Signal()

        def begin() -> TaskWatch:
            return TaskWatch(self.sync._session(), id, endpoint, mine, signal.set)

        watch = await _uncut(asyncio.to_thread(begin), TaskWatch.close)
        try:
            while True:
                try:
                    yield watch.next(0)
                except DeadlineExceededError:
                    await signal.wait(1)  # the end of the connection comes without a signal
        finally:
            watch.close()

    async def endpoints(self) -> Endpoints:
        """Returns the functions that the owner has."""
        return await self._run(
            lambda _: operations.mapped(
                Op.ENDPOINTS, messages.Endpoints(), messages.EndpointsListed, lambda a: Endpoints(a.endpoints)
            )
        )

    async def invalidate(self, endpoint: str, value: Any = NOTHING, /, **fields: Any) -> int:
        """Drops cached results: that of one call, or with no argument all of an endpoint. Returns how many."""
        if value is NOTHING and not fields:
            return await self._run(lambda _: operations.invalidate(endpoint))
        argument = calls.argument(value, fields)
        return await self._run(lambda session: calls.invalidate(endpoint, argument, session, self.sync._pool))

    async def objects(self, *endpoints: str) -> objects.Objects:
        """Returns the managed objects of the owner and their holders."""
        found = objects.Objects()
        after = 0
        while True:
            page = await self._run(partial(_page, [*endpoints], after))
            found.extend(page.objects)
            if not page.next:
                return found
            after = page.next

    async def object(self, id: str) -> messages.ObjectInfo:
        """Returns the description of a managed object. Raises StaleHandleError if it is gone."""
        return await self._run(lambda _: objects.info(id))

    async def destroy(self, id: str) -> messages.ObjectInfo:
        """Destroys an object although it has holders. For the server's own user and root. Returns its last state."""
        return await self._run(lambda _: objects.destroy(id))

    async def ping(self) -> float:
        """Returns the round-trip time of a request in seconds."""
        begin = time.perf_counter()
        await self._run(lambda _: operations.ping())
        return time.perf_counter() - begin

    async def info(self) -> ServerInfo:
        """Returns the state of the server."""
        return await self._run(lambda _: operations.mapped(Op.SERVER_INFO, None, messages.ServerInfo, ServerInfo))

    async def watch(self, *names: str) -> AsyncIterator[Event]:
        """Yields events of names, beginning with their present state. Ends when the client is closed."""
        signal = _Signal()
        make = partial(Watch, self.sync, names, on_change=signal.set)
        watch = await _uncut(asyncio.to_thread(make), Watch.close)
        try:
            while True:
                while not watch.ready():
                    await signal.wait()
                try:
                    yield watch.next(0)
                except ClosedError:
                    return
        finally:
            watch.close()

    async def follow(self, name: str, *, framework: str | None = None) -> AsyncIterator[Model]:
        """Yields the newest version of a name, then each time a newer one is there the newest. Ends when the client is
        closed."""
        follower, signal = await self._follower(name, framework)
        version = 0
        try:
            while True:
                while not follower.ready(version):
                    await signal.wait()
                try:
                    model = await _uncut(asyncio.to_thread(follower.wait_newer, version, 0), lambda _: None)
                except DeadlineExceededError:
                    continue  # it was withdrawn meanwhile
                except ClosedError:
                    return
                version = model.version
                yield model
        finally:
            follower.close()

    async def close(self) -> None:
        """Ends the connection. Tensors stay valid while they are referenced."""
        await asyncio.to_thread(self.sync.close)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: Any) -> None:
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
        chosen = await self._client._chosen(None)
        found = await self._client._run(lambda _: tasks.result(self.id, chosen, self._client.sync._track))
        return found[0]

    async def cancel(self) -> bool:
        """Cancels it. Returns False if it had ended."""
        return await self._client._run(lambda _: tasks.cancel(self.id))

    def __repr__(self) -> str:
        return f"<sharedtensor.aio.Task {self.info!r}>"


def _change(id: str, after: int, each: bool, _: Session) -> Operation[TaskInfo]:
    """Requests the next change of a task, its present state if none is known, or its end."""
    return tasks.info(id) if each and not after else tasks.wait(id, after if each else 0)


def _page(endpoints: Sequence[str], after: int, _: Session) -> Operation[messages.ObjectsListed]:
    return objects.listing([*endpoints], after)


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
            pass  # the loop is closed: no coroutine waits

    pending.when_done(wake)
    try:
        await asyncio.wait_for(done, None if timeout is None else timeout + GRACE)
    except asyncio.TimeoutError:
        session.cancel(pending, DeadlineExceededError(f"no answer within {timeout:g} s"))
    except BaseException:
        session.cancel(pending, CanceledError("the caller stopped waiting"))
        raise
    return pending.result()


async def _uncut(work: Awaitable[T], drop: Callable[[T], object]) -> T:
    """Awaits work in a thread. When the wait is cancelled, what the work makes all the same is given to `drop`."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda t: None if t.cancelled() or t.exception() else drop(t.result()))
        raise


class _Signal:
    """Wakes a coroutine from any thread. Waiting takes no thread, so that any number may wait."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wakes the coroutine that waits, or the next one."""
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            pass  # the loop is closed: no coroutine waits

    async def wait(self, seconds: float | None = None) -> None:
        """Waits for `set`, at most so long. What it stands for is looked at again afterwards."""
        try:
            await asyncio.wait_for(self._event.wait(), seconds)
        except asyncio.TimeoutError:
            return
        self._event.clear()


__all__ = ["Client", "Task", "connect"]
