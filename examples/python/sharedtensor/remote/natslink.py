"""What bins and training runs need of NATS JetStream.

A gateway with a policy gives clients scopes. Scopes exclude push consumers and the watchers of nats-py, so this package
reads with batched requests and follows with pull consumers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import time
import uuid
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from ..errors import (
    ConfigurationError,
    ConnectionLostError,
    Error,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ProtocolError,
    ResourceExhaustedError,
    UnavailableError,
)
from . import plain

try:
    import nats
    from nats.js import api
    from nats.js.errors import APIError, NoStreamResponseError, ServiceUnavailableError
    from nats.js.errors import NotFoundError as _NotFoundError
except ImportError as err:
    raise ConfigurationError(f"nats-py is not installed here ({err}): install sharedtensor[remote-nats]") from None

__all__ = [
    "ConflictError",
    "RepeatedConflictError",
    "api",
    "ask",
    "connect",
    "create_stream",
    "manage",
    "message_id",
    "nats",
    "publish",
    "purge",
    "read",
]

T = TypeVar("T")

TIMEOUT = 10.0  # seconds of a request
_REPEATED = 60.0  # seconds for which a message is repeated; less if the server's window for duplicates is shorter
_DUPLICATE_WINDOW = 120.0  # seconds for which the server recognizes repeated messages, of streams made here
_QUOTA_WAIT = 30.0  # seconds for which a refused request is repeated
_BATCH, _BATCH_BYTES = 512, 8 << 20  # of one answer
_FULL = 10023, 10028, 10047, 10077  # codes of a full store
_OUTAGES = 10008, 10009, 10158  # codes of a cluster that has no leader, or still stores the previous attempt
_CONFLICT = 10071
_FORBIDDEN, _TOO_MANY_REQUESTS, _NO_RESPONDERS = 403, 429, 503


class ConflictError(InvalidArgumentError):
    """The bin has changed since it was read."""


class RepeatedConflictError(ConflictError):
    """An earlier attempt was not answered, and the server has no record of it. It may have changed the bin."""


class _NoAnswerError(Exception):
    """An attempt failed or was not answered."""


class _Refusals:
    """The requests of a connection. The server reports only to the connection that it refuses the subject of one."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    async def note(self, err: Exception) -> None:
        """Ends the requests that an error of the connection is about. Other errors are raised by requests."""
        found = re.search(r'permissions violation for publish to "([^"]+)"', str(err), re.IGNORECASE)
        for one in self._waiting.get(found[1].lower(), ()) if found else ():
            if not one.done():
                one.set_result(None)

    async def admitted(self, subject: str, request: Awaitable[T]) -> T:
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(subject.lower(), set())
        waiting.add(refused)
        answer = asyncio.ensure_future(request)
        either: set[asyncio.Future[Any]] = {answer, refused}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise PermissionDeniedError(f"the policy of the gateway gives this client no right to {subject}")
            return await answer
        finally:
            answer.cancel()
            waiting.discard(refused)
            if not waiting:
                self._waiting.pop(subject.lower(), None)


class _PlaintextError(nats.errors.Error):  # type: ignore[misc]
    """A server without TLS would receive a token. nats-py tries the next server."""


class _Connection(nats.NATS):  # type: ignore[misc]
    """A connection that verifies TLS before it sends a token. nats-py uses TLS only if the server requires it, also if
    the URL has ``tls://``."""

    insecure_token = False

    def _connect_command(self) -> Any:
        uri, info = self._current_server.uri, self._server_info
        upgraded = self.options["tls_handshake_first"] or (uri.scheme != "ws" and info.get("tls_required"))
        try:
            encrypted = uri.scheme == "wss" or bool(upgraded)
            plain.check_server(uri.geturl(), self.options, encrypted, self.insecure_token)
        except ConfigurationError as err:
            raise _PlaintextError(str(err)) from err
        return super()._connect_command()


_refusals: weakref.WeakKeyDictionary[Any, _Refusals] = weakref.WeakKeyDictionary()
_windows: weakref.WeakKeyDictionary[Any, dict[str, float]] = weakref.WeakKeyDictionary()
"""The duplicate windows of streams that were opened, by connection and name."""


async def connect(server: str | list[str], **options: Any) -> Any:
    """Returns a connection that reconnects without an end. It sends nothing later: while it is disconnected, requests
    fail, and are repeated here.

    :param wait: seconds for the first connection, 10 by default.
    :param insecure_token: send a token or password without TLS also to another host. Other options are passed to
        `nats.connect`.

    Raises UnavailableError if no server answers, and ConfigurationError if a token would be sent in plaintext.
    """
    client = _Connection()
    client.insecure_token = bool(options.pop("insecure_token", False))
    plain.check_servers(server, options, client.insecure_token)
    given = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.5, "connect_timeout": 5, **options}
    wait = given.pop("wait", 10.0)
    refusals = _Refusals()
    given.setdefault("error_cb", refusals.note)
    given.setdefault("pending_size", 0)
    conn: Any = None
    disconnected = given.get("disconnected_cb")

    async def drop() -> None:
        """Drops messages that were not sent. nats-py would send them when it reconnects, minutes later."""
        if conn is not None and isinstance(getattr(conn, "_pending", None), list):
            conn._pending.clear()
            conn._pending_data_size = 0
        if disconnected is not None:
            await disconnected()

    given["disconnected_cb"] = drop
    try:
        await asyncio.wait_for(client.connect(server, **given), wait)
        conn = client
    except (OSError, nats.errors.Error, asyncio.TimeoutError) as err:
        if isinstance(client.last_error, _PlaintextError):
            raise ConfigurationError(str(client.last_error)) from err
        raise UnavailableError(f"cannot connect to {server}: {err or type(err).__name__}") from err
    if given["error_cb"] == refusals.note:
        _refusals[conn] = refusals
    return conn


async def ask(conn: Any, subject: str, request: Callable[[], Awaitable[T]], until: float = math.inf) -> T:
    """Returns the result of a request to a subject. It repeats the request while the client's quota is used up, and
    while no server receives it because the server or its cluster is starting.

    :param until: no attempt starts after this moment of `time.monotonic`.

    Raises PermissionDeniedError if the client has no right to it, ResourceExhaustedError if the quota stays used up,
    and UnavailableError if no server receives it.
    """
    begin, pause = time.monotonic(), 0.05
    until = min(until, begin + _QUOTA_WAIT)
    while True:
        refusals = _refusals.get(conn)
        try:
            return await (refusals.admitted(subject, request()) if refusals else request())
        except ServiceUnavailableError as err:
            if err.code is not None:  # an answer, after which the request may have run
                raise
            if time.monotonic() + pause > min(until, begin + TIMEOUT):
                raise UnavailableError(f"{subject}: no server receives requests to JetStream") from err
        except APIError as err:
            if err.code == _FORBIDDEN:
                raise PermissionDeniedError(f"{subject}: {err.description}") from err
            if err.code != _TOO_MANY_REQUESTS:
                raise
            if time.monotonic() + pause > until:
                raise ResourceExhaustedError(f"{subject}: {err.description}") from err
        except nats.errors.OutboundBufferLimitError:  # disconnected, so it was not sent
            if time.monotonic() + pause > min(until, begin + TIMEOUT):
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, 1.0)


async def manage(conn: Any, subject: str, request: Callable[[], Awaitable[T]]) -> T:
    """Returns the answer to a request about streams and consumers: `ask` with the errors of this package.

    Raises NotFoundError, ConfigurationError if the server refuses the request, UnavailableError if it does not answer
    or cannot now, and the errors of `ask`.
    """
    try:
        return await ask(conn, subject, request)
    except _NotFoundError as err:
        raise NotFoundError(f"{subject}: {err.description or err.code}") from err
    except APIError as err:
        kind = UnavailableError if err.err_code in _OUTAGES or err.code == _NO_RESPONDERS else ConfigurationError
        raise kind(f"{subject}: {err.description or err.code}") from err
    except (nats.errors.Error, asyncio.TimeoutError) as err:
        raise UnavailableError(f"{subject}: {err or type(err).__name__}") from err


async def create_stream(
    js: Any, name: str, *subjects: str, rollup: bool = False, ttl: bool = False, **more: Any
) -> None:
    """Creates a stream if it is missing."""
    windows = _windows.setdefault(js._nc, {})
    try:
        found = (await manage(js._nc, f"$JS.API.STREAM.INFO.{name}", lambda: js.stream_info(name))).config
        windows[name] = float(found.duplicate_window or 0)
        return
    except NotFoundError:
        pass
    config = api.StreamConfig(
        name=name,
        subjects=list(subjects),
        discard=api.DiscardPolicy.NEW,
        allow_rollup_hdrs=rollup,
        allow_direct=True,
        allow_msg_ttl=ttl,
        duplicate_window=_DUPLICATE_WINDOW,
        **more,
    )
    await manage(js._nc, f"$JS.API.STREAM.CREATE.{name}", lambda: js.add_stream(config))
    windows[name] = _DUPLICATE_WINDOW


async def purge(js: Any, stream: str, subject: str, before: int | None = None) -> None:
    """Removes the messages of a subject; with `before`, only messages with lower sequence numbers."""
    request = f"$JS.API.STREAM.PURGE.{stream}"
    await manage(js._nc, request, lambda: js.purge_stream(stream, subject=subject, seq=before))


def window(conn: Any, stream: str) -> float:
    """Returns the seconds for which the server recognizes a repeated message of a stream that was opened."""
    return _windows.get(conn, {}).get(stream, _DUPLICATE_WINDOW)


def message_id(headers: Mapping[str, str]) -> str:
    """Returns the id that the writer of a message chose. A gateway adds the identity of a client with scopes."""
    return re.sub(r"~[0-9a-f]{32}$", "", headers.get("Nats-Msg-Id", ""))


class _Attempts:
    """The attempts to store one message under one id.

    :ivar until: when the last attempt may begin.
    :ivar unanswered: when the first attempt began that the server has not answered; None if there is none. It may be
        stored.
    """

    def __init__(self, js: Any, stream: str, until: float) -> None:
        self._js = js
        self._window = window(js._nc, stream)
        self.until = until
        self.unanswered: float | None = None

    def limit(self) -> float:
        """Returns when the last attempt may begin. A later one could be stored a second time: the last quarter of the
        duplicate window covers the time on the way to the server."""
        if self.unanswered is None:
            return self.until
        return min(self.until, self.unanswered + self._window * 3 / 4)

    async def make(self, subject: str, body: bytes, headers: dict[str, str]) -> Any:
        """Sends the message and returns the acknowledgement. Raises errors of `ask`, and _NoAnswerError."""
        timeout = min(TIMEOUT, max(self._window / 4, 0.5))
        conn = self._js._nc
        if not conn.is_connected and not conn.is_closed:  # a connection of the caller would send it at any later time
            raise _NoAnswerError("not connected")

        async def request() -> Any:
            return await self._js.publish(subject, body, headers=headers, timeout=timeout)

        start = time.monotonic()
        try:
            return await ask(conn, subject, request, self.limit())
        except APIError as err:
            if err.err_code not in _OUTAGES:
                raise
            self.unanswered = self.unanswered or start
            raise _NoAnswerError(err.description or "no leader") from err
        except Error:
            raise  # some are OSErrors too
        except (nats.errors.NoRespondersError, NoStreamResponseError, nats.errors.OutboundBufferLimitError) as err:
            raise _NoAnswerError(str(err)) from err  # it was not sent, or no stream received it
        except (nats.errors.Error, asyncio.TimeoutError, OSError) as err:
            self.unanswered = self.unanswered or start
            if isinstance(err, nats.errors.ConnectionClosedError):
                raise self.unknown(subject) from err
            raise _NoAnswerError(str(err) or type(err).__name__) from err

    def unknown(self, subject: str) -> Error:
        """Returns the error of a message that was not acknowledged in time."""
        if self.unanswered is None:
            return UnavailableError(f"{subject}: no server answers")
        return ConnectionLostError(f"{subject}: no answer within the duplicate window, so the message may be stored")


async def publish(
    js: Any,
    stream: str,
    subject: str,
    body: bytes,
    headers: Mapping[str, str],
    id: str = "",
    until: float = math.inf,
) -> int:
    """Publishes a message once, also if an answer is lost, and returns its sequence number.

    :param until: no attempt starts after this moment of `time.monotonic`, when the condition in the headers is no
        longer what the caller has read. No attempt starts either when the server may soon forget the first unanswered
        one.

    Raises ConflictError, ResourceExhaustedError, PermissionDeniedError, UnavailableError if it is not stored, or
    ConnectionLostError if it may be stored.
    """
    sent = {**headers, "Nats-Msg-Id": id or uuid.uuid4().hex}
    attempts, pause = _Attempts(js, stream, min(until, time.monotonic() + _REPEATED)), 0.05
    while True:
        try:
            return int((await attempts.make(subject, body, sent)).seq)
        except _NoAnswerError as err:
            asked = attempts.unanswered is not None
            if time.monotonic() + pause >= until:
                if asked:
                    return await _settle(attempts, subject, sent["Nats-Msg-Id"])
                raise ConflictError(f"{subject}: no server answered in time") from err
            if time.monotonic() + pause >= attempts.limit():
                raise attempts.unknown(subject) from err
        except APIError as err:
            asked = attempts.unanswered is not None
            if err.err_code == _CONFLICT and asked:
                return await _settle(attempts, subject, sent["Nats-Msg-Id"])
            if err.err_code == _CONFLICT:
                raise ConflictError(f"{subject} has changed") from err
            if asked:
                raise attempts.unknown(subject) from err
            if err.err_code in _FULL:
                raise ResourceExhaustedError(f"{subject} is full") from err
            raise ProtocolError(f"{subject}: {err.description}") from err
        except Error as err:
            if attempts.unanswered is not None and not isinstance(err, ConnectionLostError):
                raise attempts.unknown(subject) from err
            raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, 1.0)


async def _settle(attempts: _Attempts, subject: str, id: str) -> int:
    """Returns the sequence number of a message if an unanswered attempt has stored it. A server checks the condition of
    a write before its id, so the next attempt conflicts with the stored one. The server stores an id once in a stream:
    an empty message with the same id is a duplicate if it was stored. Otherwise it will never be stored.

    Raises RepeatedConflictError, or ConnectionLostError.
    """
    probe = ".".join([*subject.split(".")[:2], "%"])  # no bin has this name
    headers, probed, pause = {"Nats-Msg-Id": id, "Nats-TTL": "1s"}, False, 0.05
    attempts.until = math.inf
    while time.monotonic() < attempts.limit():
        try:
            ack = await attempts.make(probe, b"", dict(headers))
        except _NoAnswerError:
            probed = True
        except APIError as err:
            raise attempts.unknown(subject) from err
        else:
            if not ack.duplicate:
                raise RepeatedConflictError(f"{subject} has changed")
            if not probed:
                return int(ack.seq)
            break  # it may be a duplicate of the probe
        await asyncio.sleep(pause)
        pause = min(2 * pause, 1.0)
    raise attempts.unknown(subject)


async def read(conn: Any, stream: str, pattern: str, start: int = 1) -> tuple[list[Any], int]:
    """Reads the messages whose subjects match a pattern, from a sequence number on, up to the limit of one answer.

    Returns them and the number of further ones. The header Nats-Sequence of a message is its sequence number, and
    Nats-Subject its subject.
    """
    subject = f"$JS.API.DIRECT.GET.{stream}"
    try:
        return await ask(conn, subject, lambda: _read_once(conn, subject, pattern, start))
    except APIError as err:
        kind = UnavailableError if err.code == _NO_RESPONDERS else ProtocolError
        raise kind(f"the stream {stream} cannot be read: {err.description or err.code}") from err
    except (nats.errors.Error, asyncio.TimeoutError) as err:
        raise UnavailableError(f"the stream {stream} cannot be read: {err or type(err).__name__}") from err


async def _read_once(conn: Any, subject: str, pattern: str, start: int) -> tuple[list[Any], int]:
    inbox = conn.new_inbox()
    answers = await conn.subscribe(inbox)
    query = {"seq": start, "next_by_subj": pattern, "batch": _BATCH, "max_bytes": _BATCH_BYTES}
    found: list[Any] = []
    try:
        await conn.publish(subject, json.dumps(query).encode(), reply=inbox)
        while True:
            message = await answers.next_msg(timeout=TIMEOUT)
            headers = message.headers or {}
            status = headers.get("Status", "")
            if not status:
                found.append(message)
            elif status in ("204", "404"):
                return found, int(headers.get("Nats-Num-Pending", "0")) if found else 0
            else:
                raise APIError(code=int(status), description=headers.get("Description", ""))
    finally:
        with contextlib.suppress(nats.errors.Error):  # the connection has ended, and the subscription with it
            await answers.unsubscribe()
