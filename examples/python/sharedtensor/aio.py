"""The client for asyncio.

>>> async with await aio.connect() as c:
...     w = await c.acquire("llm")
...     y = await c.call("transform", x=t, scale=2.0)
...     async for step in c.stream("spectral_norm", a=t, steps=10): ...

Cancelling an ``await`` cancels the request at the server. The event loop reads the socket while coroutines wait.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar, overload

from . import calls, catalog, client, frameworks, importing, messages, objects, operations, tasks, values, workers
from .again import Again
from .aio_iterators import Follower, Task
from .calls import NOTHING, Stream
from .endpoints import Endpoints
from .errors import (
    CanceledError,
    ClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    Error,
    LeavingError,
    NotFoundError,
    UnavailableError,
)
from .frameworks import Framework
from .inspection import Inspection
from .loops import Signal, answer, uncut
from .manifest import TensorSpec
from .models import Model
from .operations import Operation, Steps
from .options import Settings, checked
from .placing import Place
from .serverinfo import ServerInfo
from .session import Pending, Session
from .stats import ClientStats
from .tasks import TaskInfo, TaskList, TaskWatch
from .tensors import NUMPY, TORCH, A, Choice, NumpyArray, Tensor, Value
from .version_parts import RankPart
from .waiting import seconds
from .watching import Event, Watch
from .workers import Function
from .writer import VersionWriter

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


@overload
async def connect(
    path: str | os.PathLike[str] | None = ...,
    *,
    framework: TORCH | None = ...,
    timeout: float | None = ...,
    reconnect: float = ...,
    wait: float = ...,
    uid: int | None = ...,
    keep: int = ...,
) -> Client[Tensor]: ...
@overload
async def connect(
    path: str | os.PathLike[str] | None = ...,
    *,
    framework: NUMPY,
    timeout: float | None = ...,
    reconnect: float = ...,
    wait: float = ...,
    uid: int | None = ...,
    keep: int = ...,
) -> Client[NumpyArray]: ...
async def connect(path: str | os.PathLike[str] | None = None, **options: Any) -> Any:
    """Connects to an owner, with the options of `sharedtensor.connect`."""
    return Client(await uncut(asyncio.to_thread(lambda: client.connect(path, **options)), client.Client.close))


class Client(Generic[A]):
    """The same as `sharedtensor.Client`, to await. Made by `connect`, or over a client that is there: both may be used
    at once.

    :ivar sync: the blocking client underneath.
    """

    def __init__(self, sync: client.Client[A]) -> None:
        self.sync = sync

    async def _run(
        self,
        make: Callable[[Session], Operation[T]],
        timeout: float | None = None,
        *,
        light: bool = True,
        task: Session | None = None,
    ) -> T:
        """Runs an operation that `make` makes for a session, another one for each session. Connecting has a thread, and
        so has `make` unless it is `light`. `task` is the session of a task that the operation is about."""
        limit = seconds(timeout, self.sync._timeout)
        again: Again | None = None
        while True:
            session = task if task is not None and task.answers_tasks else self.sync._ready()
            made: list[Operation[T]] = []
            try:
                if session is None:
                    session = await uncut(asyncio.to_thread(self.sync._session), _forget)
                return await self._once(make, session, limit if again is None else again.left(), light, made)
            except (ConnectionLostError, UnavailableError) as err:
                if session is None:
                    raise
                again = again or Again(self.sync, bool(made) and made[0].repeatable, limit)
                pause = again.after(err, session)
                if pause is None:
                    raise
            except NotFoundError as err:
                if session is None or not made or not made[0].must_resend(err, session):
                    raise
                continue
            await asyncio.sleep(pause)

    async def _run_steps(self, steps: Steps[T], timeout: float | None = None) -> T:
        """Runs the operations that a generator yields, and returns its result."""
        operation = next(steps)
        while True:
            done = await self._run(partial(_made, operation), timeout)
            try:
                operation = steps.send(done)
            except StopIteration as end:
                result: T = end.value
                return result

    async def _once(
        self,
        make: Callable[[Session], Operation[T]],
        session: Session,
        limit: float | None,
        light: bool,
        made: list[Operation[T]],
    ) -> T:
        def start(wait: bool = True) -> tuple[Operation[T], Pending]:
            operation = made[0] if made else make(session)
            made[:] = [operation]
            try:
                return operation, self.sync._start(operation, session, limit, wait=wait)
            except BlockingIOError:
                raise
            except BaseException as err:
                if isinstance(err, Error):
                    operation.explain(err)
                operation.close()
                raise

        def give_up(started: tuple[Operation[T], Pending]) -> None:
            operation, pending = started
            session.later(partial(session.cancel, pending, CanceledError("the caller stopped waiting")))
            operation.close()

        try:
            if not light:
                raise BlockingIOError
            operation, pending = start(wait=False)
        except BlockingIOError:
            operation, pending = await uncut(asyncio.to_thread(start), give_up)
        try:
            frame = await answer(session, pending, limit)
        except Error as err:
            operation.explain(err)
            raise
        finally:
            operation.close()
        if importing.needs_driver(frame):  # importing GPU memory takes long
            return await uncut(asyncio.to_thread(operation.take, frame, session), _forget)
        return operation.take(frame, session)

    async def _chosen(self, framework: str | None) -> Framework:
        """Returns the library for tensors. If that has to import torch, which takes seconds, a thread does it."""
        name = framework or self.sync._framework
        if frameworks.must_import(name):
            return await asyncio.to_thread(frameworks.choose, name)
        return frameworks.choose(name)

    # ---- models

    @overload
    async def acquire(
        self,
        name: str,
        version: int = ...,
        *,
        tensors: Choice | None = ...,
        framework: None = ...,
        device: Place = ...,
        part: RankPart | None = ...,
        wait: float = ...,
        timeout: float | None = ...,
    ) -> Model[A]: ...
    @overload
    async def acquire(
        self,
        name: str,
        version: int = ...,
        *,
        tensors: Choice | None = ...,
        framework: TORCH,
        device: Place = ...,
        part: RankPart | None = ...,
        wait: float = ...,
        timeout: float | None = ...,
    ) -> Model[Tensor]: ...
    @overload
    async def acquire(
        self,
        name: str,
        version: int = ...,
        *,
        tensors: Choice | None = ...,
        framework: NUMPY,
        device: Place = ...,
        part: RankPart | None = ...,
        wait: float = ...,
        timeout: float | None = ...,
    ) -> Model[NumpyArray]: ...
    async def acquire(
        self,
        name: str,
        version: int = 0,
        *,
        tensors: Choice | None = None,
        framework: str | None = None,
        device: Place = None,
        part: RankPart | None = None,
        wait: float = 0.0,
        timeout: float | None = None,
    ) -> Any:
        """Attaches to a version, 0 for the newest, or to some of its tensors, on a device or to a part as the blocking
        client does. `wait` is how many seconds to wait for a name that is not published yet."""
        chosen = await self._chosen(framework)
        if wait:
            await self._published(name, chosen, seconds(wait))
        arguments = name, version, chosen, self.sync._leases, tensors, device, part
        # The driver may have to be loaded to know a GPU.
        return await self._run(
            lambda session: catalog.acquire(*arguments, session=session), timeout, light=device is None
        )

    async def _published(self, name: str, framework: Framework, wait: float | None) -> None:
        async with Follower(self, name, framework) as follower:
            try:
                await follower._wait(0, None if wait is None else time.monotonic() + wait)
            except DeadlineExceededError:
                raise DeadlineExceededError(f"{name!r} was not published within {wait:g} s") from None

    async def publish(
        self,
        name: str,
        state_dict: Mapping[str, Any],
        *,
        source: str = "",
        metadata: Mapping[str, str] | None = None,
        digests: bool = False,
        owner_digests: bool = False,
        part: tuple[int, int] | None = None,
        part_key: str = "",
        timeout: float | None = None,
    ) -> int:
        """Publishes a state dict as the next version of a name, or a part of it, and returns that version."""
        make = partial(
            catalog.publish,
            name,
            state_dict,
            self.sync._pool,
            source=source,
            metadata=metadata,
            digests=digests,
            owner_digests=owner_digests,
            part=part,
            part_key=part_key,
        )
        return await self._run(make, timeout, light=False)

    async def create(
        self, name: str, specs: Mapping[str, Any] | Iterable[TensorSpec], *, framework: str | None = None
    ) -> VersionWriter[Any]:
        """Returns the next version of a name as writable tensors in shared memory. `commit` publishes it."""
        make = partial(self.sync.create, name, specs, framework=framework)
        return await uncut(asyncio.to_thread(make), VersionWriter.abort)

    async def commit(
        self,
        version: VersionWriter,
        *,
        source: str = "",
        metadata: Mapping[str, str] | None = None,
        digests: bool = False,
        owner_digests: bool = False,
        part: tuple[int, int] | None = None,
        part_key: str = "",
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
            part=part,
            part_key=part_key,
            timeout=timeout,
        )

    async def digest(self, name: str, version: int = 0, *, timeout: float | None = None) -> bytes:
        """Waits for the digest of a version that its owner computes, and returns its 32 bytes."""
        return await self._run(partial(operations.digests, name, version), timeout)

    async def withdraw(self, name: str, *, timeout: float | None = None) -> None:
        """Withdraws a name."""
        await self._run(lambda _: operations.withdraw(name), timeout)

    async def rollback(self, name: str, version: int = 0, *, timeout: float | None = None) -> int:
        """Publishes the memory of a superseded version again and returns the new number."""
        return await self._run(lambda _: operations.rollback(name, version), timeout)

    async def list(self, *, timeout: float | None = None) -> catalog.Models:
        """Returns what is published."""
        return await self._run_steps(catalog.all_models(), timeout)

    async def inspect(self, name: str, version: int = 0, *, timeout: float | None = None) -> Inspection:
        """Returns the versions of a name and the tensors of one version."""
        return Inspection(await self._run(lambda _: operations.info(name, version, True), timeout))

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
    ) -> Value:
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
        make = partial(calls.call, endpoint, argument, self.sync._pool, chosen, self.sync._track, writable)
        return await self._run(make, timeout, light=values.is_light(argument))

    @overload
    def options(
        self, *, timeout: float | None = ..., framework: str | None = ..., writable: bool = ..., returns: type[R]
    ) -> Options[R]: ...
    @overload
    def options(
        self, *, timeout: float | None = ..., framework: str | None = ..., writable: bool = ..., returns: None = ...
    ) -> Options[Value]: ...
    def options(
        self,
        *,
        timeout: float | None = None,
        framework: str | None = None,
        writable: bool = False,
        returns: type[Any] | None = None,
    ) -> Any:
        """Returns the calls of this client with settings, as `sharedtensor.Client.options` does."""
        return Options(self, timeout, framework, writable, returns)

    def stream(
        self, endpoint: str, value: Any = NOTHING, /, *, framework: str | None = None, **fields: Any
    ) -> AsyncIterator[Value]:
        """Calls a function that yields results; the iterator that is returned has them as they come."""
        return self._stream(endpoint, calls.argument(value, fields), None, framework, None)

    async def _stream(
        self, endpoint: str, argument: Any, timeout: float | None, framework: str | None, returns: type[Any] | None
    ) -> AsyncIterator[Any]:
        chosen = await self._chosen(framework)
        signal = Signal()
        check = None if returns is None else partial(checked, returns=returns, endpoint=endpoint)
        begin = partial(Stream, endpoint, argument, self.sync, chosen, signal.set, timeout, check)
        stream: Stream[Any] = await uncut(asyncio.to_thread(begin), Stream.close)
        try:
            while True:
                if stream.empty() and await signal.wait(stream.left()):
                    continue
                try:
                    item = stream.take(0.0)
                except StopIteration:
                    return
                except LeavingError as err:
                    pause = stream.pause_after(err)
                    if pause is None:
                        raise
                    await asyncio.sleep(pause)
                    await asyncio.shield(asyncio.to_thread(stream.restart))
                    continue
                yield item
        finally:
            stream.close()

    async def submit(self, endpoint: str, value: Any = NOTHING, /, **fields: Any) -> Task:
        """Starts a call as a task. `options` gives the request a timeout."""
        return await self._submit(endpoint, calls.argument(value, fields), None)

    async def _submit(self, endpoint: str, argument: Any, timeout: float | None) -> Task:
        make = partial(tasks.submit, endpoint, argument, self.sync._pool)
        return Task(self, *await self._run(make, timeout, light=values.is_light(argument)))

    async def task(self, id: str, *, timeout: float | None = None) -> Task:
        """Returns a task by its id."""
        return Task(self, await self._run(lambda _: tasks.info(id), timeout))

    async def tasks(
        self, states: Iterable[str] = (), *, endpoint: str = "", mine: bool = False, timeout: float | None = None
    ) -> TaskList:
        """Returns the tasks of the owner."""
        return await self._run(lambda _: tasks.listing([*states], endpoint, mine), timeout)

    async def watch_tasks(self, *, id: str = "", endpoint: str = "", mine: bool = False) -> AsyncIterator[TaskInfo]:
        """Yields tasks as they change, beginning with the present ones. Raises the error that ended the connection."""
        signal = Signal()
        make = partial(TaskWatch, self.sync, id, endpoint, mine, signal.set)
        watch = await uncut(asyncio.to_thread(make), TaskWatch.close)
        try:
            while True:
                try:
                    yield watch.next(0)
                except DeadlineExceededError:
                    await signal.wait()
                except ConnectionLostError:
                    raise
                except ClosedError:
                    return
        finally:
            watch.close()

    async def endpoints(self, *, timeout: float | None = None) -> Endpoints:
        """Returns the functions that the owner has."""
        return await self._run(lambda _: operations.endpoints(), timeout)

    async def invalidate(self, endpoint: str, value: Any = NOTHING, /, **fields: Any) -> int:
        """Drops cached results: that of one call, or with no argument all of an endpoint. Returns how many."""
        make = partial(calls.invalidate, endpoint, value, fields, self.sync._pool)
        return await self._run(make, light=values.is_light([value, fields]))

    async def objects(self, *endpoints: str) -> objects.Objects:
        """Returns the managed objects of the owner and their holders."""
        found: objects.Objects = await self._run_steps(objects.all_objects([*endpoints]))
        return found

    async def object(self, id: str, *, timeout: float | None = None) -> messages.ObjectInfo:
        """Returns the description of a managed object. Raises StaleHandleError if it is gone."""
        return await self._run(lambda _: objects.info(id), timeout)

    async def destroy(self, id: str, *, timeout: float | None = None) -> messages.ObjectInfo:
        """Destroys an object although it has holders. For the server's own user and root. Returns its last state."""
        return await self._run(lambda _: objects.destroy(id), timeout)

    async def ping(self, *, timeout: float | None = None) -> float:
        """Returns the round-trip time of a request in seconds."""
        begin = time.perf_counter()
        await self._run(lambda _: operations.ping(), timeout)
        return time.perf_counter() - begin

    async def info(self, *, timeout: float | None = None) -> ServerInfo:
        """Returns the state of the server."""
        return await self._run(lambda _: operations.server_info(), timeout)

    def stats(self) -> ClientStats:
        """Returns what this client holds and has made."""
        return self.sync.stats()

    @property
    def server(self) -> messages.Hello:
        """The server's hello: its version, process and devices."""
        return self.sync.server

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self.sync.connected

    # ---- watching

    async def watch(self, *names: str) -> AsyncIterator[Event]:
        """Yields events of names, beginning with their present state. Ends when the client is closed."""
        signal = Signal()
        make = partial(Watch, self.sync, names, on_change=signal.set)
        watch = await uncut(asyncio.to_thread(make), Watch.close)
        try:
            while True:
                while not watch.ready():
                    await signal.wait()
                try:
                    yield watch.next(0)
                except ConnectionLostError:
                    raise
                except ClosedError:
                    return
        finally:
            watch.close()

    @overload
    def follow(
        self, name: str, *, framework: None = ..., device: Place = ..., part: RankPart | None = ...
    ) -> Follower[A]: ...
    @overload
    def follow(
        self, name: str, *, framework: TORCH, device: Place = ..., part: RankPart | None = ...
    ) -> Follower[Tensor]: ...
    @overload
    def follow(
        self, name: str, *, framework: NUMPY, device: Place = ..., part: RankPart | None = ...
    ) -> Follower[NumpyArray]: ...
    def follow(
        self, name: str, *, framework: str | None = None, device: Place = None, part: RankPart | None = None
    ) -> Any:
        """Returns a follower of a name: an asynchronous iterator over its newest versions, which `wait_newer` waits for
        too. It begins with its first use, and ends when the client is closed."""
        return Follower(self, name, framework, device, part)

    # ---- a worker

    async def offer(
        self, *, calls: int = 1, framework: str | None = None, **functions: Function | Callable[..., Any]
    ) -> Offer:
        """Offers functions of this process, as `sharedtensor.Client.offer` does. ``async def`` functions run in this
        event loop, and are cancelled when their caller leaves. Others run in threads. `calls` run at once."""
        return await self._offer(functions, calls, framework)

    async def _offer(
        self, functions: Mapping[str, Function | Callable[..., Any]], calls: int, framework: str | None
    ) -> Offer:
        await self._chosen(framework)
        signal = Signal()
        make = partial(
            workers.Offer,
            self.sync,
            functions,
            calls=calls,
            framework=framework,
            loop=asyncio.get_running_loop(),
            on_end=signal.set,
        )
        return Offer(await uncut(asyncio.to_thread(make), workers.Offer.fail_closed), signal)

    @overload
    def endpoint(self, function: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def endpoint(
        self,
        /,
        *,
        name: str = ...,
        cache: bool = ...,
        managed: bool = ...,
        task: bool = ...,
        timeout: float | None = ...,
        batch: tuple[int, float] | None = ...,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    def endpoint(self, function: Any = None, /, **how: Any) -> Any:
        """Marks a function for `serve`, as `sharedtensor.Client.endpoint` does: ``@c.endpoint``."""
        return self.sync.endpoint(function, **how)

    async def serve(self, *, calls: int = 1, framework: str | None = None) -> None:
        """Offers the functions that `endpoint` has marked, until the client is closed or the await is cancelled. Raises
        what ends the offer otherwise, and what `offer` raises."""
        async with await self._offer(self.sync._functions, calls, framework) as offered:
            await offered.wait()

    # ---- the end

    async def close(self) -> None:
        """Ends the connection. Tensors stay valid while they are referenced."""
        await asyncio.to_thread(self.sync.close)

    async def __aenter__(self) -> Client[A]:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()


class Options(Settings[R]):
    """The calls of a client with the settings of `Client.options`. All keywords are fields of the function."""

    _client: Client[Any]

    async def call(self, endpoint: str, value: Any = NOTHING, /, **fields: Any) -> R:
        """Calls a function, as `Client.call` does. Raises SerializationError if the result is not of the type that
        `returns` names."""
        argument = calls.argument(value, fields)
        made, _ = await self._client._call(endpoint, argument, self._timeout, self._writable, self._framework)
        return checked(made, self._returns, endpoint)

    async def call_object(self, endpoint: str, value: Any = NOTHING, /, **fields: Any) -> calls.Object:
        """Calls a function whose results are managed, as `Client.call_object` does."""
        argument = calls.argument(value, fields)
        found = await self._client._call(endpoint, argument, self._timeout, False, self._framework)
        return calls.object_of(endpoint, found)

    def stream(self, endpoint: str, value: Any = NOTHING, /, **fields: Any) -> AsyncIterator[R]:
        """Calls a function that yields results, as `Client.stream` does. The timeout is that of the whole stream."""
        argument = calls.argument(value, fields)
        return self._client._stream(endpoint, argument, self._timeout, self._framework, self._returns)

    async def submit(self, endpoint: str, value: Any = NOTHING, /, **fields: Any) -> Task:
        """Starts a call as a task, as `Client.submit` does. The timeout is that of the request, not of the task."""
        return await self._client._submit(endpoint, calls.argument(value, fields), self._timeout)


class Offer:
    """What a process offers, as `Client.offer` returns it. It lasts until `close`; over a new connection the functions
    are offered again."""

    def __init__(self, sync: workers.Offer, signal: Signal) -> None:
        self.sync = sync
        self._signal = signal

    async def wait(self, timeout: float | None = None) -> bool:
        """Waits until the offer has ended; returns whether it has. Raises why if that was not `close`."""
        limit = seconds(timeout)
        until = None if limit is None else time.monotonic() + limit
        while not self.sync.wait(0):
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return False
            await self._signal.wait(left)
        self._signal.set()  # for another coroutine that waits
        return True

    async def close(self, timeout: float | None = None) -> None:
        """Withdraws the functions and waits until running calls have returned, at most `timeout` seconds."""
        await asyncio.shield(asyncio.to_thread(self.sync.close, timeout))

    async def __aenter__(self) -> Offer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self.sync)


def _forget(_: object) -> None:
    pass


def _made(operation: Operation[T], _: Session) -> Operation[T]:
    return operation


__all__ = ["Client", "Follower", "Offer", "Options", "Task", "connect"]
