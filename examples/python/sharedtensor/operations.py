"""The client's requests as values: the message, and a function that makes the result of the answer. The blocking client
and the client for asyncio run them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from . import cbor, messages
from .endpoints import Endpoints
from .errors import Error, UnsupportedError
from .frames import Frame, close_all
from .message import Message
from .op import Op
from .serverinfo import ServerInfo
from .session import Session

T = TypeVar("T")
M = TypeVar("M", bound=Message)
Steps = Generator["Operation[T]", T, T]
"""Several requests for one result: a generator yields each operation, is sent its result, and returns the whole."""


@dataclass
class Operation(Generic[T]):
    """A request and how its answer is read.

    :ivar finish: gets the response and the session; what it does not take of the frame's descriptors is closed.
    :ivar files: descriptors to send, which the operation owns: `close` closes them.
    :ivar discard: receives a response that arrives too late, to release its leases and references.
    :ivar repeatable: whether the request may be repeated after a lost connection.
    :ivar done: called once, when there is an outcome of any kind.
    :ivar numbered: the memory that the server is asked to keep: see `Outgoing`.
    :ivar about: the request in words, for errors. The server's message does not repeat the request.
    """

    op: Op
    body: Message | bytes | None
    finish: Callable[[Frame, Session], T]
    files: Sequence[int] = ()
    discard: Callable[[Frame, Session], None] | None = None
    repeatable: bool = False
    done: Callable[[], None] | None = None
    about: str = ""
    numbered: dict[int, bytes] = field(default_factory=dict)
    _closed: bool = field(default=False, repr=False)

    def close(self) -> None:
        """Closes the descriptors and calls `done`. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        close_all(self.files)
        if self.done is not None:
            self.done()

    def must_resend(self, error: Error, session: Session) -> bool:
        """Reports whether the function has not run because the server no longer keeps memory that the call named: the
        operation made anew sends that memory."""
        kept = session.kept
        return error.type == "not kept" and kept is not None and bool(self.numbered) and kept.missed(self.numbered)

    def explain(self, error: Error) -> None:
        """Prefixes the message of an error with the request."""
        if self.about and self.about not in error.message:
            error.message = f"{self.about}: {error.message}"

    def named(self, about: str) -> Operation[T]:
        """Sets `about` and returns the operation."""
        self.about = about
        return self

    def take(self, frame: Frame, session: Session) -> T:
        """Makes the result of a response, and closes what is left of the frame."""
        try:
            return self.finish(frame, session)
        finally:
            frame.close()


def plain(op: Op, body: Message | None, answer: type[M], *, repeatable: bool = True) -> Operation[M]:
    """Returns an operation whose result is the answer itself."""
    return Operation(op, body, lambda frame, _: answer.decode(frame.body), repeatable=repeatable)


def mapped(
    op: Op, body: Message | None, answer: type[M], make: Callable[[M], T], *, repeatable: bool = True
) -> Operation[T]:
    """Returns an operation whose result is made of the answer."""
    return Operation(op, body, lambda frame, _: make(answer.decode(frame.body)), repeatable=repeatable)


REPEATABLE: Operation[Any] = Operation(Op.PING, None, lambda frame, session: None, repeatable=True)
"""Stands for requests that may be sent again after a lost connection."""


def ping() -> Operation[None]:
    """Requests an empty answer."""
    return _PING


_PING: Operation[None] = Operation(
    Op.PING, cbor.Encoded(messages.Ping().encode()), lambda frame, session: None, repeatable=True
)


def endpoints() -> Operation[Endpoints]:
    """Requests the functions of the server."""
    return mapped(Op.ENDPOINTS, messages.Endpoints(), messages.EndpointsListed, lambda a: Endpoints(a.endpoints))


def server_info() -> Operation[ServerInfo]:
    """Requests the state of the server."""
    return mapped(Op.SERVER_INFO, None, messages.ServerInfo, ServerInfo)


def withdraw(name: str) -> Operation[None]:
    """Withdraws a name. Holders of a version keep it."""
    return mapped(
        Op.WITHDRAW, messages.Withdraw(name=name), messages.Withdrawn, lambda _: None, repeatable=False
    ).named(f"withdraw {name!r}")


def rollback(name: str, version: int) -> Operation[int]:
    """Publishes the memory of a superseded version again."""
    return mapped(
        Op.ROLLBACK,
        messages.Rollback(name=name, version=version),
        messages.Published,
        lambda done: done.version,
        repeatable=False,
    ).named(f"roll back {name!r}")


def info(name: str, version: int, manifest: bool) -> Operation[messages.InfoResult]:
    """Requests the description of a name."""
    return plain(Op.INFO, messages.Info(name=name, version=version, manifest=manifest), messages.InfoResult).named(
        f"inspect {name!r}"
    )


DIGESTS = "digests"
"""The feature of owners that compute digests of what is published."""


def require_digests(session: Session) -> None:
    """Raises UnsupportedError where the owner computes no digests."""
    if DIGESTS not in session.hello.features:
        raise UnsupportedError("this owner is of a version that computes no digests")


def digests(name: str, version: int, session: Session) -> Operation[bytes]:
    """Waits for the digests that the owner computes of a version; the result is that of the whole."""
    require_digests(session)
    body = messages.Digests(name=name, version=version)
    return mapped(Op.DIGESTS, body, messages.Digested, lambda answer: answer.whole).named(f"digests of {name!r}")


def invalidate(endpoint: str) -> Operation[int]:
    """Drops the cached results of an endpoint; the result is how many."""
    body = messages.InvalidateEndpoint(endpoint=endpoint)
    return mapped(Op.INVALIDATE_ENDPOINT, body, messages.Invalidated, lambda answer: answer.count, repeatable=False)
