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
    PermissionDeniedError,
    ProtocolError,
    ResourceExhaustedError,
    UnavailableError,
)

try:
    import nats
    from nats.js import api
    from nats.js.errors import APIError, NotFoundError
except ImportError as err:
    raise ConfigurationError(f"nats-py is not installed here ({err}): install sharedtensor[remote-nats]") from None

__all__ = [
    "ConflictError",
    "NotFoundError",
    "api",
    "ask",
    "connect",
    "create_stream",
    "nats",
    "publish",
    "purge",
    "read",
]

T = TypeVar("T")

TIMEOUT = 10.0  # seconds of a request
_REPEATED = 90.0
"""Seconds in which a message is repeated. The server recognizes a repeated one for two minutes."""
_QUOTA_WAIT = 30.0  # seconds for which a refused request is repeated
_ATTEMPTS = 5
_BATCH, _BATCH_BYTES = 512, 8 << 20  # of one answer
_FULL, _CONFLICT = 10077, 10071
_FORBIDDEN, _TOO_MANY_REQUESTS, _NO_RESPONDERS = 403, 429, 503


class ConflictError(InvalidArgumentError):
    """The bin has changed since it was read."""


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


_refusals: weakref.WeakKeyDictionary[Any, _Refusals] = weakref.WeakKeyDictionary()


async def connect(server: str | list[str], **options: Any) -> Any:
    """Returns a connection that reconnects without an end.

    :param wait: seconds for the first connection, 10 by default. Other options are passed to `nats.connect`.

    Raises UnavailableError if no server answers.
    """
    given = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.5, "connect_timeout": 5, **options}
    wait = given.pop("wait", 10.0)
    refusals = _Refusals()
    given.setdefault("error_cb", refusals.note)
    try:
        conn = await asyncio.wait_for(nats.connect(server, **given), wait)
    except (OSError, nats.errors.Error, asyncio.TimeoutError) as err:
        raise UnavailableError(f"cannot connect to {server}: {err or type(err).__name__}") from err
    if given["error_cb"] == refusals.note:
        _refusals[conn] = refusals
    return conn


async def ask(conn: Any, subject: str, request: Callable[[], Awaitable[T]]) -> T:
    """Returns the result of a request to a subject. While the client's quota of requests is used up, it repeats it.

    Raises PermissionDeniedError if the client has no right to it, and ResourceExhaustedError if the quota stays used
    up.
    """
    until, pause = time.monotonic() + _QUOTA_WAIT, 0.05
    while True:
        refusals = _refusals.get(conn)
        try:
            return await (refusals.admitted(subject, request()) if refusals else request())
        except APIError as err:
            if err.code == _FORBIDDEN:
                raise PermissionDeniedError(f"{subject}: {err.description}") from err
            if err.code != _TOO_MANY_REQUESTS:
                raise
            if time.monotonic() > until:
                raise ResourceExhaustedError(f"{subject}: {err.description}") from err
        await asyncio.sleep(pause)
        pause = min(2 * pause, 1.0)


async def create_stream(
    js: Any, name: str, *subjects: str, rollup: bool = False, ttl: bool = False, **more: Any
) -> None:
    """Creates a stream if it is missing."""
    try:
        await ask(js._nc, f"$JS.API.STREAM.INFO.{name}", lambda: js.stream_info(name))
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
        duplicate_window=120,
        **more,
    )
    try:
        await ask(js._nc, f"$JS.API.STREAM.CREATE.{name}", lambda: js.add_stream(config))
    except APIError as err:
        raise ConfigurationError(f"the stream {name} cannot be created: {err.description}") from err


async def purge(js: Any, stream: str, subject: str, before: int | None = None) -> None:
    """Removes the messages of a subject; with `before`, only messages with lower sequence numbers."""
    request = f"$JS.API.STREAM.PURGE.{stream}"
    try:
        await ask(js._nc, request, lambda: js.purge_stream(stream, subject=subject, seq=before))
    except (nats.errors.Error, asyncio.TimeoutError) as err:
        raise UnavailableError(f"the messages of {subject} cannot be removed: {err or type(err).__name__}") from err


async def publish(
    js: Any, subject: str, body: bytes, headers: Mapping[str, str], id: str = "", until: float = math.inf
) -> int:
    """Publishes a message once, also if an answer is lost, and returns its sequence number.

    :param until: no attempt starts after this moment of `time.monotonic`, nor when the server may have forgotten the
        first one.

    Raises ConflictError, ResourceExhaustedError, PermissionDeniedError, or ConnectionLostError if no answer arrives.
    """
    headers = {**headers, "Nats-Msg-Id": id or uuid.uuid4().hex}
    until = min(until, time.monotonic() + _REPEATED)
    for attempt in range(_ATTEMPTS):
        try:
            return int((await ask(js._nc, subject, lambda: js.publish(subject, body, headers=headers))).seq)
        except APIError as err:
            if err.err_code == _CONFLICT:
                raise ConflictError(f"{subject} has changed") from err
            if err.err_code == _FULL:
                raise ResourceExhaustedError(f"{subject} is full") from err
            raise ProtocolError(f"{subject}: {err.description}") from err
        except Error:
            raise  # some are OSErrors too
        except (nats.errors.Error, asyncio.TimeoutError, OSError) as err:
            over = attempt + 1 == _ATTEMPTS or time.monotonic() > until
            if over or isinstance(err, nats.errors.ConnectionClosedError):
                raise ConnectionLostError(f"{subject}: no answer, so the message may be stored") from err
            await asyncio.sleep(min(0.2 * 2**attempt, 2))
    raise AssertionError("unreachable")


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
