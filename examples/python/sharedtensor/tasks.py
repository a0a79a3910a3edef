"""Tasks: calls that continue when their caller leaves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from queue import Empty
from typing import TYPE_CHECKING, Any, TypeVar

from . import frameworks, messages, tables, values
from .calls import Object, Track, discard_returned, encoded, finish_returned
from .errors import (
    ClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    Error,
    StaleHandleError,
    TaskError,
    TaskNotCompleteError,
    TaskNotFoundError,
    combined,
)
from .frames import Frame
from .frameworks import Framework
from .inbox import Inbox, finalize_later, stop_watch
from .lease import release_late
from .memory import SlabPools
from .op import Op, TaskEventKind
from .operations import REPEATABLE, Operation, mapped
from .session import Session
from .tensors import Value
from .waiting import seconds
from .wire_errors import exception_of

if TYPE_CHECKING:
    from .client import Client
    from .connection import Connection

T = TypeVar("T")
OVER = frozenset({"completed", "failed", "cancelled", "expired"})


class TaskInfo:
    """The state of a task at one moment.

    :ivar id: of the task.
    :ivar endpoint: that it runs.
    :ivar state: pending, running, completed, failed or cancelled.
    :ivar done: progress, of `total`; 0 of 0 if the task reports none.
    :ivar message: the progress text of the function.
    :ivar seq: the number of the change that led to this state.
    :ivar label: that its submitter gave it, such as the client of a gateway; may be empty.
    """

    def __init__(self, sent: messages.TaskInfo) -> None:
        self.id = sent.id
        self.endpoint = sent.endpoint
        self.state = sent.state
        self.seq = sent.seq
        self.done = sent.done
        self.total = sent.total
        self.message = sent.message
        self.created_at = sent.created_at
        self.started_at = sent.started_at
        self.finished_at = sent.finished_at
        self.session = sent.session
        self.object = sent.object
        self.label = sent.label
        self.error: Error | None = None if sent.error is None else exception_of(sent.error)

    @property
    def over(self) -> bool:
        """Whether it has ended, however."""
        return self.finished_at != 0 or self.state in OVER

    def __repr__(self) -> str:
        progress = f" {self.done}/{self.total}" if self.total else ""
        message = f": {tables.clean(self.message)}" if self.message else ""
        return f"{self.endpoint} {self.id} {self.state}{progress}{message}"


class TaskList(list[TaskInfo]):
    """Tasks as `Client.tasks` returns them: a list that prints as a table."""

    def table(self) -> tables.Table:
        """Returns one row a task."""
        rows = [
            (t.id, t.endpoint, t.state, f"{t.done}/{t.total}" if t.total else "", tables.age(t.created_at), t.message)
            for t in self
        ]
        return tables.Table(["task", "endpoint", "state", "progress", "age", "message"], rows)

    def __repr__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def submit(endpoint: str, value: Any, pools: SlabPools, session: Session) -> Operation[tuple[TaskInfo, Session]]:
    """Starts a call as a task. The task is cancelled if the caller leaves before the answer. The result contains the
    session, over which the server answers requests about the task also after its goodbye."""
    out = values.Outgoing(value, session, pools.arguments)

    def discard(frame: Frame, session: Session) -> None:
        release_late(session, Op.CANCEL_TASK, messages.Task(id=messages.TaskInfo.decode(frame.body).id))

    return Operation(
        Op.SUBMIT,
        encoded(endpoint, out),
        lambda frame, session: (TaskInfo(messages.TaskInfo.decode(frame.body)), session),
        files=out.files,
        discard=discard,
        done=out.release,
    )


def info(id: str) -> Operation[TaskInfo]:
    """Requests the state of a task."""
    return mapped(Op.TASK, messages.Task(id=id), messages.TaskInfo, TaskInfo)


def wait(id: str, after: int) -> Operation[TaskInfo]:
    """Waits for the end of a task, or with `after` for a later change than that one."""
    return mapped(Op.WAIT_FOR_TASK, messages.Task(id=id, after=after), messages.TaskInfo, TaskInfo)


def cancel(id: str) -> Operation[bool]:
    """Cancels a task; the result is whether this did it."""
    return mapped(
        Op.CANCEL_TASK, messages.Task(id=id), messages.TaskCancelled, lambda answer: answer.cancelled, repeatable=False
    )


def result(id: str, framework: Framework, track: Track) -> Operation[tuple[Any, Object | None]]:
    """Fetches the result of a task that has completed."""
    return Operation(
        Op.TASK_RESULT,
        messages.Task(id=id),
        lambda frame, s: finish_returned(frame, s, framework, track),
        discard=discard_returned,
        repeatable=True,
    )


def listing(states: list[str], endpoint: str, mine: bool) -> Operation[TaskList]:
    """Lists tasks."""
    body = messages.Tasks(states=states, endpoint=endpoint, mine=mine)
    return mapped(Op.TASKS, body, messages.TasksListed, lambda answer: TaskList(TaskInfo(t) for t in answer.tasks))


class Submission:
    """The session over which a task was submitted. The server that accepted the task answers requests about it there
    until it has ended, also while the next server serves.

    :ivar session: None for a task that was found by its id.
    """

    __slots__ = ("_id", "session")

    def __init__(self, id: str, session: Session | None) -> None:
        self._id = id
        self.session = session

    def settle(self, error: Error | None = None) -> None:
        """Records that the result of the task was requested, and failed with `error` unless it is None."""
        if self.session is not None and not isinstance(error, (TaskNotCompleteError, DeadlineExceededError)):
            self.session.settled(self._id)

    def explained(self, error: TaskNotFoundError, client: Connection) -> Error:
        """Returns the error of a task that the present server does not know."""
        was, now = self.session, client._current
        if was is None or now is None or was.hello.server == now.hello.server:
            return error
        lost: Error = combined(TaskNotFoundError, [StaleHandleError])(
            f"{error}: its owner was replaced, and it is not known whether the task has run"
        )
        lost.server, lost.reason = was.hello.server, "server_mismatch"  # type: ignore[attr-defined]
        return lost


class Task:
    """A task of the server, as `Client.submit` and `Client.task` return it. A pickle of it is a reference by its id.

    The owner that accepted the task finishes it and answers requests about it, also while it leaves. After an owner was
    killed, requests raise an error that is both TaskNotFoundError and StaleHandleError.

    :ivar id: with which any client can look it up.
    :ivar info: the newest that is known.
    """

    def __init__(self, client: Client[Any], info: TaskInfo, session: Session | None = None) -> None:
        """`session` is that of the submission."""
        self._client = client
        self._submission = Submission(info.id, session)
        self.id = info.id
        self.info = info

    def _run(self, operation: Operation[T], timeout: float | None) -> T:
        try:
            return self._client._run(operation, timeout=timeout, task=self._submission.session)
        except TaskNotFoundError as err:
            raise self._submission.explained(err, self._client) from None

    def refresh(self, *, timeout: float | None = None) -> TaskInfo:
        """Requests the present state."""
        self.info = self._run(info(self.id), timeout)
        return self.info

    def wait(self, *, progress: Callable[[TaskInfo], object] | None = None, timeout: float | None = None) -> Value:
        """Waits for the end and returns the result, as `result` does.

        :param progress: called with each change that is seen, such as ``print``.
        :param timeout: in seconds; then DeadlineExceededError, and the task continues.
        """
        for change in self.changes(timeout=timeout, each=progress is not None):
            if progress is not None:
                progress(change)
        return self.result(timeout=timeout)

    def changes(self, *, timeout: float | None = None, each: bool = True) -> Iterator[TaskInfo]:
        """Yields the task as it changes, ending with its end; with `each` false only its end."""
        until = None if timeout is None else time.monotonic() + timeout
        after = 0
        while True:
            left = None if until is None else max(until - time.monotonic(), 0.001)
            if each and not after:
                self.info = self._run(info(self.id), left)
            else:
                self.info = self._run(wait(self.id, after if each else 0), left)
            yield self.info
            if self.info.over:
                return
            after = self.info.seq

    def result(self, *, timeout: float | None = None) -> Value:
        """Returns the result of the task, its tensors in place. Raises TaskFailedError with the function's error as
        `__cause__`, TaskCancelledError, and TaskNotCompleteError while it runs."""
        found: Value = self._result(timeout)[0]
        return found

    def _result(self, timeout: float | None) -> tuple[Any, Object | None]:
        client = self._client
        try:
            found = self._run(result(self.id, frameworks.choose(client._framework), client._track), timeout)
        except Error as err:
            self._submission.settle(err)
            raise
        self._submission.settle()
        return found

    def object(self, *, timeout: float | None = None) -> Object:
        """Returns the result of a managed endpoint as its object."""
        found = self._result(timeout)[1]
        if found is None:
            raise TaskError(f"the result of {self.info.endpoint} is no managed object")
        return found

    def cancel(self, *, timeout: float | None = None) -> bool:
        """Cancels it. Returns False if it had ended."""
        return self._run(cancel(self.id), timeout)

    def __reduce__(self) -> Any:
        from . import pickling

        return pickling.task, (self._client.path, self._client._uid, self.id)

    def __repr__(self) -> str:
        return f"<sharedtensor.Task {self.info!r}>"


class TaskWatch:
    """Tasks as they change, as `Client.watch_tasks` returns it: an iterator over `TaskInfo` that begins with the tasks
    there are. Closing or dropping it ends the watch."""

    def __init__(
        self,
        client: Client[Any],
        id: str,
        endpoint: str,
        mine: bool,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """`on_change` is called after each event and at the end, by any thread. The watch keeps its client alive."""
        self._client = client
        self._on_change = on_change
        client._attempts(lambda session, _: self._begin(session, id, endpoint, mine), REPEATABLE)

    def _begin(self, session: Session, id: str, endpoint: str, mine: bool) -> None:
        self._session = session
        self._inbox = Inbox(self._on_change, session)
        body = messages.WatchTasks(id=id, endpoint=endpoint, mine=mine)
        pending = session.start(Op.WATCH_TASKS, body, events=self._inbox.put)
        self._stop = stop_watch(session, pending.id, self._inbox)
        self._finalizer = finalize_later(self, session, self._stop)
        try:
            session.wait(pending, 10).close()
        except BaseException:
            self.close()
            raise

    def next(self, timeout: float | None = None) -> TaskInfo:
        """Waits for the next change. Raises DeadlineExceededError after `timeout` seconds, and the error that ended
        the connection."""
        timeout = seconds(timeout)
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                frame = self._inbox.get(timeout=None if until is None else max(until - time.monotonic(), 0.0))
            except Empty:
                raise DeadlineExceededError(f"no task changed within {timeout:g} s") from None
            if not isinstance(frame, Frame):
                raise ClosedError("the watch is closed")
            frame.close()
            event = messages.TaskEvent.decode(frame.body)
            if event.task is not None and event.kind in (TaskEventKind.LISTED, TaskEventKind.CHANGED):
                return TaskInfo(event.task)

    def __iter__(self) -> Iterator[TaskInfo]:
        while True:
            try:
                found = self.next()
            except ConnectionLostError:
                raise
            except ClosedError:
                return
            yield found

    def close(self) -> None:
        """Ends the watch. Safe to call twice."""
        if self._finalizer.detach() is not None:
            self._stop()

    def __enter__(self) -> TaskWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
