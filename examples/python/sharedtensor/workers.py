"""Functions of this process that others call through the owner: the process is a worker."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np

from . import cbor, coroutines, forks, frameworks, messages, values
from .errors import (
    ApplicationError,
    CanceledError,
    ClosedError,
    ConfigurationError,
    ConnectionLostError,
    Error,
    InternalError,
    SerializationError,
    UnsupportedError,
)
from .frames import Frame
from .jobs import Jobs
from .op import OfferEventKind, Op
from .session import Session
from .values import Outgoing
from .waiting import Monitor, seconds

if TYPE_CHECKING:
    from .client import Client

FEATURE = "offer"
_LONGEST_NAME = 128
_LONGEST_MESSAGE = 4096
_LONGEST_DATA = 32 << 10
_DEEPEST_DATA = 5  # servers leave out data of more levels
_DECLINED = messages.ErrorMessage(code=22, message="the worker does not offer it", type="busy")


@dataclass(frozen=True)
class Function:
    """A function with how the owner is to run it. A plain function is one without any of this.

    :ivar run: gets the fields of the argument by name, or the argument itself where that is no map. Its results are
        sent as they are; a generator's come one by one, as a stream. It may be an ``async def`` function.
    :ivar cache: equal calls get the result of an earlier one.
    :ivar managed: results are objects that the owner keeps while they have references.
    :ivar task: calls run as tasks of the owner.
    :ivar timeout: seconds that a run may take; None for any time.
    :ivar batch: the maximum number of requests that the gateway may join into one call, and how many seconds a request
        may wait for others. Tensors are joined along their first dimension, and the result needs as many rows.

    Tensors are declared with ``Annotated[torch.Tensor, "float32[-1,3]"]``: the gateway's inference protocol reports the
    declaration and refuses other tensors. A result that is a TypedDict has an output for each of its keys, also as T
    of a generator's Iterator[T].
    """

    run: Callable[..., Any]
    cache: bool = False
    managed: bool = False
    task: bool = False
    timeout: float | None = None
    batch: tuple[int, float] | None = None

    @property
    def streams(self) -> bool:
        """Whether results come one by one."""
        return inspect.isgeneratorfunction(self.run) or inspect.isasyncgenfunction(self.run)

    def describe(self, name: str) -> messages.EndpointInfo:
        """Returns the description for the owner."""
        signature = _signature(self.run) or inspect.Signature()
        hints = _hints(self.run)
        most, delay = self.batch or (0, 0.0)
        fields: list[messages.FieldInfo] = []
        for p in signature.parameters.values():
            if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
                fields = []
                break
            optional = p.default is not p.empty
            hint = hints.get(p.name)
            fields.append(_field(p.name, hint or p.annotation, optional))
        result = hints.get("return", signature.return_annotation)
        if self.streams and get_args(result):  # Iterator[T] or Generator[T, ...]
            result = get_args(result)[0]
        return messages.EndpointInfo(
            name=name,
            task=self.task,
            managed=self.managed,
            stream=self.streams,
            cache=self.cache,
            single_flight=self.cache,
            timeout=int((self.timeout or 0) * 1e9),
            in_="" if fields else "any",
            out=_type_name(result),
            in_fields=fields,
            out_fields=_fields(result),
            out_tensor=_declared(result),
            batch_max=most,
            batch_delay=int(delay * 1e9),
        )


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """Returns the parameters of a function; None for a function in C that declares none."""
    try:
        return inspect.signature(function)
    except ValueError:
        return None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns the annotations of a function; none if a name in them is not defined at run time."""
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def _declared(annotation: Any) -> str:
    """Returns the declaration of a tensor in an annotation: the first text of its metadata."""
    texts = (one for one in getattr(annotation, "__metadata__", ()) if isinstance(one, str))
    return next(texts, "")


def _field(name: str, annotation: Any, optional: bool) -> messages.FieldInfo:
    return messages.FieldInfo(
        name=name,
        type=_type_name(annotation),
        optional=optional,
        fields=_fields(annotation),
        tensor=_declared(annotation),
    )


def _fields(annotation: Any) -> list[messages.FieldInfo]:
    """Returns the keys of a TypedDict; none of other types."""
    if not is_typeddict(annotation):
        return []
    hints = _hints(annotation)
    required = getattr(annotation, "__required_keys__", frozenset(hints))
    return [_field(name, hint, name not in required) for name, hint in hints.items()]


# Names of types in descriptions of functions, which are those of Go.
_TYPES = {bool: "bool", int: "int", float: "float64", str: "string", bytes: "[]uint8"}


def _type_name(annotation: Any) -> str:
    if annotation is inspect.Signature.empty:
        return "any"
    annotation = getattr(annotation, "__origin__", annotation) if hasattr(annotation, "__metadata__") else annotation
    if _is_tensor(annotation):
        return "tensor.Tensor"
    if isinstance(annotation, type) and annotation in _TYPES:
        return _TYPES[annotation]
    items = get_args(annotation)
    if get_origin(annotation) is list and items and isinstance(items[0], type) and items[0] in _TYPES:
        return "[]" + _TYPES[items[0]]
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", None) or str(annotation)
    return text[: _LONGEST_NAME // 4]  # a character has four bytes at most


def _is_tensor(annotation: Any) -> bool:
    """Reports whether an annotation is the class of numpy's arrays or of torch's tensors."""
    cls = get_origin(annotation) or annotation
    torch = frameworks.loaded_torch()
    tensors = (np.ndarray,) if torch is None else (np.ndarray, torch.Tensor)
    return isinstance(cls, type) and issubclass(cls, tensors)


class Call:
    """The call that a function runs for, as `current_call` returns it.

    :ivar endpoint: the name that was called.
    :ivar reason: why the call was cancelled, for people.
    """

    def __init__(self, endpoint: str, number: int) -> None:
        self.endpoint = endpoint
        self.number = number
        self.reason = ""
        self._left = threading.Event()
        self._interrupt: Callable[[], object] | None = None  # ends the coroutine that runs for the call

    @property
    def cancelled(self) -> bool:
        """Whether the caller has cancelled the call, has left, or ran out of time."""
        return self._left.is_set()

    def wait(self, seconds: float) -> bool:
        """Waits for that time or until the call is cancelled. Returns whether it is cancelled."""
        return self._left.wait(seconds)

    def check(self) -> None:
        """Raises CanceledError if the call is cancelled."""
        if self.cancelled:
            raise CanceledError(self.reason or "the caller no longer waits for the result")

    def _leave(self, reason: str) -> None:
        self.reason = reason
        self._left.set()
        interrupt = self._interrupt
        if interrupt is not None:
            interrupt()


_current: contextvars.ContextVar[Call | None] = contextvars.ContextVar("sharedtensor call", default=None)


def current_call() -> Call:
    """Returns the call that this thread runs a function for. Raises ClosedError outside of one."""
    call = _current.get()
    if call is None:
        raise ClosedError("no call runs in this thread")
    return call


@dataclass
class Job:
    session: Session
    event: messages.OfferEvent
    frame: Frame
    call: Call

    @property
    def key(self) -> tuple[int, int]:
        """The call's number, which is one of its session."""
        return id(self.session), self.event.call


class Offer:
    """What a process offers, as `Client.offer` returns it. It lasts until `close`; over a new connection the functions
    are offered again.

    Functions run in threads of the offer, `calls` at once.
    """

    _monitor: Monitor

    def __init__(
        self,
        client: Client[Any],
        functions: Mapping[str, Function | Callable[..., Any]],
        *,
        calls: int,
        framework: str | None,
        loop: asyncio.AbstractEventLoop | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Coroutines of functions run in `loop`, by default in a loop of the thread that runs the call. `on_end` is
        called at the end, by any thread."""
        self._loop = loop
        self._on_end = on_end
        if calls < 1 or not functions:
            raise ConfigurationError("an offer has functions, and takes one call at once or more")
        self._client = client
        self._functions = {n: f if isinstance(f, Function) else Function(f) for n, f in functions.items()}
        self._infos = [f.describe(n) for n, f in self._functions.items()]
        self._signatures = {n: _signature(f.run) for n, f in self._functions.items()}
        self._calls = calls
        self._framework = framework
        self._jobs = Jobs()
        self._running: dict[tuple[int, int], Job] = {}
        # In a forked child no thread runs a call.
        forks.track(self, _monitor=Monitor, forked=lambda offer: offer._running.clear())
        self._session: Session | None = None
        self._request = 0
        self._receiver: _Receiver | None = None
        self._closing = False
        self._error: Error | None = None
        self._ended = 0  # threads
        client._offers.append(self)
        try:
            for i in range(calls):  # before the owner may send a call
                threading.Thread(target=self._serve, name=f"sharedtensor call {i}", daemon=True).start()
            client._attempts(lambda session, _: self.begin(session))
        except BaseException:
            self.close()
            raise

    def begin(self, session: Session) -> None:
        """Offers the functions over a session. Raises what the server answers."""
        with self._monitor.lock:
            if self._closing or self._error is not None or self._session is session:
                return
            if session is not self._client._current:
                return  # another connection has replaced this one meanwhile
            self._session, self._request = session, 0
        self._jobs.read(session)
        if FEATURE not in session.hello.features:
            raise UnsupportedError(
                "this owner does not accept offers of endpoints; start it with `sharedtensor serve --offers`"
            )
        body = messages.Offer(endpoints=self._infos, calls=self._calls)
        receiver = self._receiver = _Receiver(self, session)
        pending = session.start(Op.OFFER, body, events=receiver)
        try:
            session.wait(pending, 10).close()
        except BaseException:
            _withdraw(session, pending.id)  # the server may have accepted it
            raise
        with self._monitor.lock:
            ended = self._closing or self._error is not None
            if self._session is session:
                self._request = pending.id
        if ended:  # meanwhile, and without the number to withdraw it
            _withdraw(session, pending.id)

    def lost(self) -> None:
        """Cancels the calls that run: the connection is lost, and with it their callers."""
        with self._monitor.lock:
            self._session = None
            self._jobs.read(None)
            running = list(self._running.values())
        for job in running:
            job.call._leave("the connection to the owner has ended")

    # ---- calls

    def _take(self, job: Job) -> bool:
        """Queues a call for the threads. Returns False once the offer has ended, and for an unknown function."""
        with self._monitor.lock:
            if self._error is not None or job.event.endpoint not in self._functions:
                return False
            self._running[job.key] = job
            self._jobs.put(job)
        return True

    def _cancel(self, key: tuple[int, int], reason: str) -> None:
        with self._monitor.lock:
            job = self._running.get(key)
        if job is not None:
            job.call._leave(reason)

    def _serve(self) -> None:
        """Runs calls until the offer ends. If the thread ends for another reason, it withdraws the offer: the owner
        would go on sending calls that no thread runs."""
        try:
            while self._serve_one():
                pass
        except BaseException as err:
            self._give_up(err)
        finally:
            self._thread_ended()
            coroutines.close_own()

    def _serve_one(self) -> bool:
        """Runs the next call. Returns False at the end of the offer. A separate method, so that the thread refers to
        no call while it waits for the next one."""
        job = self._jobs.get()
        if job is None:
            return False
        self._work(job)
        return True

    def _work(self, job: Job) -> None:
        token = _current.set(job.call)
        try:
            self._run(job)
        except BaseException as err:  # SystemExit and the like too: the caller waits for an answer
            _refuse(job, err)
        finally:
            _current.reset(token)
            self._done(job)

    def _done(self, job: Job) -> None:
        job.frame.close()
        with self._monitor.lock:
            self._running.pop(job.key, None)
            self._monitor.changed.notify_all()

    def _give_up(self, err: BaseException) -> None:
        self.fail(InternalError(f"a thread of the offer ended with {type(err).__name__}: offer the functions again"))
        with self._monitor.lock:
            session, id = self._session, self._request
            self._session = None
        if session is not None and id:
            session.later(lambda: _withdraw(session, id))

    def _thread_ended(self) -> None:
        """Answers the calls that no thread is left to run. There are some only if a thread was made to end: it may
        have been between two calls, or between taking one and running it."""
        with self._monitor.lock:
            self._ended += 1
            left = list(self._running.values()) if self._ended == self._calls else []
        for job in left:
            error = InternalError("the worker's thread has ended: whether the function has run is not known")
            job.session.later(partial(_refuse, job, error))
            self._done(job)

    def _run(self, job: Job) -> None:
        function = self._functions[job.event.endpoint]
        result = self._start(function, job)
        if inspect.isawaitable(result):
            result = coroutines.run(result, self._loop, job.call, _current)
        if not function.streams:
            self._answer(job, result)
            return
        if isinstance(result, AsyncGenerator):
            result = coroutines.iterate(result, self._loop, job.call, _current)
        self._stream(job, result)
        job.session.request(Op.ANSWER, messages.Answer(call=job.event.call)).close()

    def _start(self, function: Function, job: Job) -> Any:
        """Calls the function with the arguments that came. What does not fit its parameters is refused."""
        event = job.event
        job.call.check()
        framework = frameworks.choose(self._framework or self._client._framework)
        value, _ = values.decode(event.args, event.handles, job.frame, job.session, framework)
        by_name = isinstance(value, dict) and all(isinstance(key, str) for key in value)
        fields: dict[str, Any] = value if by_name else {}
        alone = () if by_name or value is None else (value,)
        signature = self._signatures[event.endpoint]
        if signature is not None:
            try:
                signature.bind(*alone, **fields)
            except TypeError as err:
                raise SerializationError(f"argument: {err}", type="type") from err
        return function.run(*alone, **fields)

    def _answer(self, job: Job, value: Any, *, more: bool = False) -> None:
        """Sends a result, with its memory. Of a stream's it returns when there is room for the next one."""
        lent = [handle.name for handle in job.event.handles]
        out = Outgoing(value, job.session, self._client._pool.results, seal=True, lent=lent)
        try:
            body = messages.Answer(call=job.event.call, value=out.item, handles=out.handles, more=more)
            job.session.request(Op.ANSWER, body, files=out.files).close()
        finally:
            out.close()

    def _stream(self, job: Job, results: Iterator[Any]) -> None:
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
        timeout = seconds(timeout)
        with self._monitor.lock:
            ended = self._monitor.changed.wait_for(lambda: self._error is not None, timeout)
            lost = isinstance(self._error, ConnectionLostError)
            if self._error is not None and (lost or not isinstance(self._error, ClosedError)):
                raise self._error
        return ended

    def fail(self, error: Error) -> None:
        """Ends the offer with an error. Calls that it has are still run."""
        with self._monitor.lock:
            if self._error is not None:
                return
            self._error = error
            if self._receiver is not None:
                self._receiver.offer = None
            self._monitor.changed.notify_all()
        self._jobs.close()
        if self._on_end is not None:
            self._on_end()
        try:
            self._client._offers.remove(self)
        except ValueError:
            pass  # it was removed before

    def fail_closed(self) -> None:
        """Withdraws the functions without waiting."""
        with self._monitor.lock:
            session, id = self._session, self._request
            self._session, self._closing = None, True
        if session is not None and id:
            session.later(lambda: _withdraw(session, id))
        self.fail(ClosedError("the offer is closed"))

    def close(self, timeout: float | None = None) -> None:
        """Withdraws the functions and waits until running calls have returned, at most `timeout` seconds. Safe to call
        twice."""
        with self._monitor.lock:
            self._closing = True
            session, id = self._session, self._request
            self._session = None
        if session is not None and id and session.closed is None:
            try:
                session.request(Op.UNWATCH, messages.Unwatch(watch=id), timeout=10).close()
            except Error:
                pass  # best effort: a lost connection ends the offer as well
        self.fail(ClosedError("the offer is closed"))
        with self._monitor.lock:
            self._monitor.changed.wait_for(lambda: not self._running, seconds(timeout))

    def __enter__(self) -> Offer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "ended" if self._error is not None else "offered" if self._session is not None else "not connected"
        return f"<sharedtensor.Offer of {', '.join(self._functions)}, {state}>"


class _Receiver:
    """Receives the events of an offer, in the receive thread. Calls that come after its end are declined: the owner
    sends them to another worker. It does not keep an offer that has ended alive.

    :ivar offer: None once it has ended.
    """

    def __init__(self, offer: Offer, session: Session) -> None:
        self.offer: Offer | None = offer
        self._session = session

    def __call__(self, frame: Frame) -> None:
        event = messages.OfferEvent.decode(frame.body)
        offer, session = self.offer, self._session
        if event.kind == OfferEventKind.CALL:
            job = Job(session, event, frame, Call(event.endpoint, event.call))
            if offer is not None and offer._take(job):
                return
            session.later(partial(_send_error, job, _DECLINED))
        elif event.kind == OfferEventKind.CANCEL and offer is not None:
            offer._cancel((id(session), event.call), event.reason)
        frame.close()


def _withdraw(session: Session, id: int) -> None:
    """Ends an offer without waiting for the answer. Its events still arrive: calls that were on their way need an
    answer each."""
    try:
        session.start(Op.UNWATCH, messages.Unwatch(watch=id))
    except Error:
        pass  # best effort: a lost connection ends the offer as well


def _refuse(job: Job, err: BaseException) -> None:
    """Answers a call with an error. If the call was answered before, the server ignores it."""
    error = _sent(err)
    if (error.code, error.type) == (_DECLINED.code, _DECLINED.type):
        error.code, error.type = InternalError.code, ""  # a function cannot decline: the owner would run it again
    _send_error(job, error)


def _send_error(job: Job, error: messages.ErrorMessage) -> None:
    try:
        job.session.request(Op.ANSWER, messages.Answer(call=job.event.call, error=error)).close()
    except Error:
        pass  # best effort: the caller has left, or the connection is lost


def _sent(err: BaseException) -> messages.ErrorMessage:
    """Returns an exception as callers receive it: errors of this package by code and type, others by the name of their
    class. The message can be sent for any exception."""
    text = _text(err)
    if not isinstance(err, Error):
        word = type(err).__name__
        return messages.ErrorMessage(
            code=ApplicationError.code, message=text, type=_cut(word, _LONGEST_NAME), data={1: text}
        )
    word = _cut(err.type, _LONGEST_NAME) if isinstance(err.type, str) else type(err).__name__
    if not isinstance(err, ApplicationError):
        code = err.code if isinstance(err.code, int) and 0 < err.code < 1 << 16 else InternalError.code
        return messages.ErrorMessage(code=code, message=text, type=word)
    data: dict[int, Any] = {1: text}
    if err.data is not None:
        try:
            data[2] = values.plain(err.data, _DEEPEST_DATA)
            size = len(cbor.encode(data))
            if size > _LONGEST_DATA:
                raise SerializationError(f"{size} bytes where {_LONGEST_DATA} are allowed")
        except BaseException as problem:
            data = {1: _cut(f"{text} (its data cannot be sent: {_text(problem)})", _LONGEST_MESSAGE)}
    return messages.ErrorMessage(code=err.code, message=data[1], type=word, data=data)


def _text(err: BaseException) -> str:
    try:
        return _cut(str(err) or type(err).__name__, _LONGEST_MESSAGE)
    except BaseException:  # the exception's own __str__
        return f"{type(err).__name__} (its text cannot be read)"


def _cut(text: str, limit: int) -> str:
    """Returns a text in at most `limit` bytes of UTF-8. One that was cut ends with the number of bytes left out."""
    data = text.encode(errors="backslashreplace")
    if len(data) <= limit:
        return data.decode()
    mark = f"... ({len(data) - limit + 32} bytes cut)"
    return data[: limit - 32].decode(errors="ignore") + mark
