"""Functions of this process that others call through the owner: the process is a worker."""

from __future__ import annotations

import contextvars
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from . import frameworks, messages, values
from .errors import (
    ApplicationError,
    CanceledError,
    ClosedError,
    ConfigurationError,
    EndpointNotFoundError,
    Error,
    SerializationError,
    UnsupportedError,
)
from .frames import Frame
from .op import OfferEventKind, Op
from .session import Session
from .values import Outgoing

if TYPE_CHECKING:
    from .client import Client

FEATURE = "offer"
_LONGEST_NAME = 128
_LONGEST_MESSAGE = 4096


@dataclass(frozen=True)
class Function:
    """A function with how the owner is to run it. A plain function is one without any of this.

    :ivar run: gets the fields of the argument by name, or the argument itself where that is no map. Its results are
        sent as they are; a generator's come one by one, as a stream.
    :ivar cache: equal calls get the result of an earlier one.
    :ivar managed: results are objects that the owner keeps as long as somebody has a reference.
    :ivar task: calls run as tasks of the owner.
    :ivar timeout: seconds that a run may take; None for any time.
    """

    run: Callable[..., Any]
    cache: bool = False
    managed: bool = False
    task: bool = False
    timeout: float | None = None

    @property
    def streams(self) -> bool:
        """Whether results come one by one."""
        return inspect.isgeneratorfunction(self.run)

    def describe(self, name: str) -> messages.EndpointInfo:
        """Returns what the owner is told of it."""
        signature = _signature(self.run) or inspect.Signature()
        fields: list[messages.FieldInfo] = []
        for p in signature.parameters.values():
            if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
                fields = []
                break
            optional = p.default is not p.empty
            fields.append(messages.FieldInfo(name=p.name, type=_type_name(p.annotation), optional=optional))
        return messages.EndpointInfo(
            name=name,
            task=self.task,
            managed=self.managed,
            stream=self.streams,
            cache=self.cache,
            single_flight=self.cache,
            timeout=int((self.timeout or 0) * 1e9),
            in_="" if fields else "any",
            out=_type_name(signature.return_annotation),
            in_fields=fields,
        )


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """Returns the parameters of a function; None for one written in C that does not say."""
    try:
        return inspect.signature(function)
    except ValueError:
        return None


def _type_name(annotation: Any) -> str:
    if annotation is inspect.Signature.empty:
        return "any"
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", None) or str(annotation)
    return text[: _LONGEST_NAME // 4]  # a character has four bytes at most


class Call:
    """The call that a function runs for, as `current_call` returns it.

    :ivar endpoint: the name by which it was called.
    :ivar reason: why nobody waits for the result any more, for people.
    """

    def __init__(self, endpoint: str, number: int) -> None:
        self.endpoint = endpoint
        self.number = number
        self.reason = ""
        self._left = threading.Event()

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more: the caller has cancelled or gone, or its time is over."""
        return self._left.is_set()

    def wait(self, seconds: float) -> bool:
        """Waits that long, or until nobody waits for the result any more; returns whether that is so."""
        return self._left.wait(seconds)

    def check(self) -> None:
        """Raises CanceledError where nobody waits for the result any more."""
        if self.cancelled:
            raise CanceledError(self.reason or "nobody waits for the result any more")

    def _leave(self, reason: str) -> None:
        self.reason = reason
        self._left.set()


_current: contextvars.ContextVar[Call | None] = contextvars.ContextVar("sharedtensor call", default=None)


def current_call() -> Call:
    """Returns the call that this thread runs a function for. Raises ClosedError outside of one."""
    call = _current.get()
    if call is None:
        raise ClosedError("no call runs in this thread")
    return call


@dataclass
class _Job:
    session: Session
    event: messages.OfferEvent
    frame: Frame
    call: Call


class Offer:
    """What a process offers, as `Client.offer` returns it. It lasts until `close`; over a new connection the functions
    are offered again.

    Functions run in threads of their own, as many at once as `calls` says.
    """

    def __init__(
        self,
        client: Client,
        functions: Mapping[str, Function | Callable[..., Any]],
        *,
        calls: int,
        framework: str | None,
    ) -> None:
        if calls < 1 or not functions:
            raise ConfigurationError("an offer has functions, and takes one call at once or more")
        self._client = client
        self._functions = {n: f if isinstance(f, Function) else Function(f) for n, f in functions.items()}
        self._infos = [f.describe(n) for n, f in self._functions.items()]
        self._calls = calls
        self._framework = framework
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Condition()
        self._running: dict[tuple[int, int], Call] = {}
        self._session: Session | None = None
        self._request = 0
        self._error: Error | None = None
        self._threads = [
            threading.Thread(target=self._work, name=f"sharedtensor call {i}", daemon=True) for i in range(calls)
        ]
        client._offers.append(self)
        try:
            self.begin(client._session())
        except BaseException:
            self.close()
            raise
        for thread in self._threads:
            thread.start()

    def begin(self, session: Session) -> None:
        """Offers the functions over a session. Raises what the server answers."""
        with self._lock:
            if self._error is not None or self._session is session:
                return
            self._session = session
        if FEATURE not in session.hello.features:
            raise UnsupportedError("this owner takes no offers: start it with `sharedtensor serve --offers`")
        body = messages.Offer(endpoints=self._infos, calls=self._calls)
        pending = session.start(Op.OFFER, body, events=lambda frame: self._receive(session, frame))
        session.wait(pending, 10).close()
        self._request = pending.id

    def lost(self) -> None:
        """Has the functions that run hear that the connection is gone, and with it their callers."""
        with self._lock:
            self._session = None
            running = list(self._running.values())
        for call in running:
            call._leave("the connection to the owner has ended")

    # ---- calls

    def _receive(self, session: Session, frame: Frame) -> None:
        """Takes a call, or the word that nobody waits for one any more, by the thread that receives."""
        event = messages.OfferEvent.decode(frame.body)
        key = (id(session), event.call)
        if event.kind == OfferEventKind.CALL:
            call = Call(event.endpoint, event.call)
            with self._lock:
                ended = self._error is not None
                if not ended:
                    self._running[key] = call
            if not ended:
                self._jobs.put(_Job(session, event, frame, call))
                return
            refusal = messages.Answer(
                call=event.call, error=_sent(EndpointNotFoundError("not in this worker any more"))
            )
            session.later(lambda: _drop(session, refusal))
        elif event.kind == OfferEventKind.CANCEL:
            with self._lock:
                left = self._running.get(key)
            if left is not None:
                left._leave(event.reason)
        frame.close()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            token = _current.set(job.call)
            try:
                self._run(job)
            except Error:
                pass  # nobody waits for the answer any more, or the connection is gone
            finally:
                _current.reset(token)
                job.frame.close()
                with self._lock:
                    self._running.pop((id(job.session), job.event.call), None)
                    self._lock.notify_all()

    def _run(self, job: _Job) -> None:
        try:
            function = self._functions.get(job.event.endpoint)
            if function is None:
                raise EndpointNotFoundError(f"there is no {job.event.endpoint!r} in this worker")
            result = self._start(function, job)
            if not function.streams:
                self._answer(job, result)
                return
            self._stream(job, result)
            answer = messages.Answer(call=job.event.call)
        except Exception as err:
            answer = messages.Answer(call=job.event.call, error=_sent(err))
        job.session.request(Op.ANSWER, answer).close()

    def _start(self, function: Function, job: _Job) -> Any:
        """Calls the function with the arguments that came. What does not fit its parameters is refused."""
        event = job.event
        job.call.check()
        framework = frameworks.choose(self._framework or self._client._framework)
        value, _ = values.decode(event.args, event.handles, job.frame, job.session, framework)
        by_name = isinstance(value, dict) and all(isinstance(key, str) for key in value)
        fields: dict[str, Any] = value if by_name else {}
        alone = () if by_name or value is None else (value,)
        signature = _signature(function.run)
        if signature is not None:
            try:
                signature.bind(*alone, **fields)
            except TypeError as err:
                raise SerializationError(f"argument: {err}", type="type") from err
        return function.run(*alone, **fields)

    def _answer(self, job: _Job, value: Any, *, more: bool = False) -> None:
        """Sends a result, with its memory. Of a stream's it returns when there is room for the next one."""
        out = Outgoing(value, job.session, self._client._pool, seal=True)
        try:
            body = messages.Answer(call=job.event.call, value=out.plain, handles=out.handles, more=more)
            job.session.request(Op.ANSWER, body, files=out.files).close()
        finally:
            out.close()

    def _stream(self, job: _Job, results: Iterator[Any]) -> None:
        try:
            for result in results:
                job.call.check()
                self._answer(job, result, more=True)
        finally:
            close = getattr(results, "close", None)
            if close is not None:
                close()

    # ---- the end

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the offer has ended; returns whether it has. Raises why where that was not `close`."""
        with self._lock:
            ended = self._lock.wait_for(lambda: self._error is not None, timeout)
            if self._error is not None and not isinstance(self._error, ClosedError):
                raise self._error
        return ended

    def fail(self, error: Error) -> None:
        """Ends it with an error."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            self._lock.notify_all()
        for _ in self._threads:
            self._jobs.put(None)
        if self in self._client._offers:
            self._client._offers.remove(self)

    def close(self, timeout: float | None = None) -> None:
        """Withdraws the functions and waits until those that run have returned, at most `timeout` seconds. Safe to call
        twice."""
        session, self._session = self._session, None
        if session is not None and self._request and session.closed is None:
            try:
                session.request(Op.UNWATCH, messages.Unwatch(watch=self._request), timeout=10).close()
            except Error:
                pass  # the connection is gone, and the offer with it
        self.fail(ClosedError("the offer is closed"))
        with self._lock:
            self._lock.wait_for(lambda: not self._running, timeout)

    def __enter__(self) -> Offer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "ended" if self._error is not None else "offered" if self._session is not None else "not connected"
        return f"<sharedtensor.Offer of {', '.join(self._functions)}, {state}>"


def _drop(session: Session, answer: messages.Answer) -> None:
    session.start(Op.ANSWER, answer)


def _sent(err: BaseException) -> messages.ErrorMessage:
    """Returns an exception as callers get it: this package's by code and type, others by the name of their class."""
    text = str(err) or type(err).__name__
    text = text.encode()[:_LONGEST_MESSAGE].decode(errors="ignore")
    if isinstance(err, ApplicationError) or not isinstance(err, Error):
        word = err.type if isinstance(err, Error) else type(err).__name__
        data = {1: text} if not isinstance(err, Error) or err.data is None else {1: text, 2: err.data}
        return messages.ErrorMessage(code=ApplicationError.code, message=text, type=word, data=data)
    return messages.ErrorMessage(code=err.code, message=text, type=err.type)
