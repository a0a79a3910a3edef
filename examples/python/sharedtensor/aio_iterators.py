"""What the client for asyncio returns to wait for: tasks and followers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import tasks, watching
from .calls import Object
from .errors import ClosedError, ConnectionLostError, DeadlineExceededError, Error, TaskError, TaskNotFoundError
from .loops import Signal, uncut
from .models import Model
from .operations import Operation
from .placing import Place
from .session import Session
from .tasks import TaskInfo
from .tensors import A
from .version_parts import RankPart
from .waiting import seconds

if TYPE_CHECKING:
    from .aio import Client

T = TypeVar("T")


class Task:
    """A task of the server, to await.

    :ivar info: the newest that is known.
    """

    def __init__(self, owner: Client[Any], info: TaskInfo, session: Session | None = None) -> None:
        """`session` is that of the submission."""
        self._client = owner
        self._submission = tasks.Submission(info.id, session)
        self.id = info.id
        self.info = info

    async def _run(self, make: Callable[[Session], Operation[T]], timeout: float | None = None) -> T:
        try:
            return await self._client._run(make, timeout, task=self._submission.session)
        except TaskNotFoundError as err:
            raise self._submission.explained(err, self._client.sync) from None

    async def refresh(self, *, timeout: float | None = None) -> TaskInfo:
        """Requests the present state."""
        self.info = await self._run(lambda _: tasks.info(self.id), timeout)
        return self.info

    async def wait(self, *, progress: Callable[[TaskInfo], object] | None = None, timeout: float | None = None) -> Any:
        """Waits for the end and returns the result. `progress` is called with each change that is seen."""

        async def follow() -> None:
            after = 0
            while not self.info.over:
                self.info = await self._run(partial(_change, self.id, after, progress is not None))
                if progress is not None:
                    progress(self.info)
                after = self.info.seq

        timeout = seconds(timeout)
        try:
            await asyncio.wait_for(follow(), timeout)
        except asyncio.TimeoutError:
            raise DeadlineExceededError(f"the task has not ended within {timeout:g} s") from None
        return await self.result()

    async def result(self, *, timeout: float | None = None) -> Any:
        """Returns the result of a task that has completed, or raises why there is none."""
        return (await self._result(timeout))[0]

    async def object(self, *, timeout: float | None = None) -> Object:
        """Returns the result of a managed endpoint as its object."""
        found = (await self._result(timeout))[1]
        if found is None:
            raise TaskError(f"the result of {self.info.endpoint} is no managed object")
        return found

    async def _result(self, timeout: float | None) -> tuple[Any, Object | None]:
        chosen = await self._client._chosen(None)
        try:
            found = await self._run(lambda _: tasks.result(self.id, chosen, self._client.sync._track), timeout)
        except Error as err:
            self._submission.settle(err)
            raise
        self._submission.settle()
        return found

    async def cancel(self, *, timeout: float | None = None) -> bool:
        """Cancels it. Returns False if it had ended."""
        return await self._run(lambda _: tasks.cancel(self.id), timeout)

    def __repr__(self) -> str:
        return f"<sharedtensor.aio.Task {self.info!r}>"


def _change(id: str, after: int, each: bool, _: Session) -> Operation[TaskInfo]:
    """Requests the next change of a task, its present state if none is known, or its end."""
    return tasks.info(id) if each and not after else tasks.wait(id, after if each else 0)


class Follower(Generic[A]):
    """The newest version of a name, as `Client.follow` returns it: an asynchronous iterator, which yields the newest
    version, then each time a newer one is there the newest. Closing or dropping it ends the watch."""

    def __init__(
        self, client: Client[Any], name: str, framework: str | None, device: Place = None, part: RankPart | None = None
    ) -> None:
        self._client = client
        self._device = device
        self._part = part
        self._name = name
        self._framework = framework
        self._sync: watching.Follower[A] | None = None
        self._signal: Signal | None = None
        self._beginning = asyncio.Lock()
        self._closed = False
        self._version = 0

    async def _begin(self) -> watching.Follower[A]:
        """Returns the follower underneath, which begins with the first use."""
        async with self._beginning:
            if self._closed:
                raise ClosedError("the follower is closed")
            if self._sync is None:
                await self._client._chosen(self._framework)
                self._signal = Signal()
                make: Callable[[], Any] = partial(
                    watching.Follower,
                    self._client.sync,
                    self._name,
                    self._framework,
                    self._signal.set,
                    self._device,
                    self._part,
                )
                begun: watching.Follower[A] = await uncut(asyncio.to_thread(make), watching.Follower.close)
                self._sync = begun
            return self._sync

    async def _wait(self, version: int | None, until: float | None) -> watching.Follower[A]:
        sync = await self._begin()
        assert self._signal is not None
        while not sync.ready(version):
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise DeadlineExceededError(f"no newer version of {self._name!r} in time: the newest is {sync.newest}")
            await self._signal.wait(left)
        self._signal.set()  # for another coroutine that waits
        return sync

    @property
    def newest(self) -> int:
        """The newest version that is known, 0 for none, and before the first use."""
        return 0 if self._sync is None else self._sync.newest

    async def wait_newer(self, version: int | None = None, timeout: float | None = None) -> Model[A]:
        """Waits until there is a later version than `version` and returns the newest, as
        `sharedtensor.Follower.wait_newer` does. Raises ClosedError once the follower or its client is closed."""
        limit = seconds(timeout)
        until = None if limit is None else time.monotonic() + limit
        while True:
            sync = await self._wait(version, until)
            try:
                return await uncut(asyncio.to_thread(sync.wait_newer, version, 0), lambda _: None)
            except DeadlineExceededError:
                pass  # it was withdrawn meanwhile

    def __aiter__(self) -> Follower[A]:
        return self

    async def __anext__(self) -> Model[A]:
        try:
            model = await self.wait_newer(self._version)
        except ConnectionLostError:
            raise
        except ClosedError:
            raise StopAsyncIteration from None
        self._version = model.version
        return model

    async def aclose(self) -> None:
        """Ends it. The models that it gave out stay. Safe to call twice."""
        self._closed = True
        if self._sync is not None:
            self._sync.close()

    async def __aenter__(self) -> Follower[A]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
