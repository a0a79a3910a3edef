"""Connections to the HTTP listener of a gateway, which requests reuse."""

from __future__ import annotations

import http.client
import select
import ssl
import threading
import time
from urllib.parse import urlsplit

from ..errors import (
    ClosedError,
    ConfigurationError,
    ConnectionLostError,
    DeadlineExceededError,
    Error,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ProtocolError,
    ResourceExhaustedError,
    UnavailableError,
)
from . import plain

_IDLE = 30.0  # seconds after which a connection is not reused
_KEPT = 8  # idle connections
_ATTEMPTS = 3

_CLASSES: dict[int, type[Error]] = {
    400: InvalidArgumentError,
    401: PermissionDeniedError,
    403: PermissionDeniedError,
    404: NotFoundError,
    413: ResourceExhaustedError,
    429: ResourceExhaustedError,
    503: UnavailableError,
}


class Connections:
    """Idle connections to one server. Its methods may be used by several threads."""

    def __init__(
        self, url: str, token: str = "", context: ssl.SSLContext | None = None, insecure_token: bool = False
    ) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"{url!r} is not the URL of a gateway: use http://HOST:PORT or https://HOST:PORT")
        plain.check(url, token, parts.scheme == "https", insecure_token)
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._host = parts.hostname
        self._port = parts.port
        self._context = (context or ssl.create_default_context()) if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._header = {"Content-Type": "application/json"}
        if token:
            self._header["Authorization"] = f"Bearer {token}"
        self._lock = threading.Lock()
        self._idle: list[tuple[http.client.HTTPConnection, float]] = []
        self._closed = False

    def post(self, path: str, body: bytes, *, timeout: float, repeat: bool) -> bytes:
        """Sends a body and returns that of the response.

        :param timeout: in seconds, of the whole request.
        :param repeat: whether the request is sent again if a connection breaks.

        Raises DeadlineExceededError, UnavailableError if nothing was sent, ConnectionLostError if the outcome is
        unknown, or the class of the response's status.
        """
        until = time.monotonic() + timeout
        for attempt in range(_ATTEMPTS):
            connection = self._take(until)
            sent = False
            try:
                if connection.sock is None:
                    connection.connect()
                connection.sock.settimeout(_left(until))
                sent = True
                connection.request("POST", self._prefix + path, body, self._header)
                response = connection.getresponse()
                text = response.read()
            except TimeoutError as err:
                connection.close()
                raise DeadlineExceededError(f"{self.url} did not answer within {timeout:g} seconds") from err
            except (OSError, http.client.HTTPException) as err:
                connection.close()
                if not sent:
                    raise UnavailableError(f"cannot connect to {self.url}: {err}") from err
                if repeat and attempt + 1 < _ATTEMPTS and time.monotonic() < until:
                    continue
                raise ConnectionLostError(f"the connection to {self.url} broke: {err or type(err).__name__}") from err
            if response.will_close:
                connection.close()
            else:
                self._put(connection)
            if response.status != 200:
                raise _refusal(response.status, text)
            return text
        raise AssertionError("unreachable")

    def _take(self, until: float) -> http.client.HTTPConnection:
        with self._lock:
            if self._closed:
                raise ClosedError("the client is closed")
            while self._idle:
                connection, since = self._idle.pop()
                if time.monotonic() - since < _IDLE and not _readable(connection):
                    return connection
                connection.close()
        if self._context is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=_left(until), context=self._context)
        return http.client.HTTPConnection(self._host, self._port, timeout=_left(until))

    def _put(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _KEPT:
                self._idle.append((connection, time.monotonic()))
                return
        connection.close()

    def close(self) -> None:
        """Closes the idle connections, and the others when their requests end."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0.001)


def _readable(connection: http.client.HTTPConnection) -> bool:
    """Reports whether an idle connection can be read, which means that the server has closed it."""
    if connection.sock is None:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _refusal(status: int, text: bytes) -> Error:
    message = text[:500].decode("utf-8", "replace").strip() or http.client.responses.get(status, "")
    return _CLASSES.get(status, ProtocolError)(f"the gateway answered {status}: {message}")
