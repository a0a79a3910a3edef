"""When a request that failed is sent again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .errors import Error, LeavingError
from .session import Session

if TYPE_CHECKING:
    from .connection import Connection


class Again:
    """Decides whether a request that failed is sent again, for the blocking client and for that of asyncio.

    A request that did not run, because the server is leaving, is sent up to four times, and with a time limit until
    that is reached. A request that may have run is sent again once, if that is harmless. Go's client has the same rule.
    """

    def __init__(self, client: Connection, repeatable: bool, limit: float | None) -> None:
        """`limit` is the time limit of the request in seconds, which counts from now."""
        self._client = client
        self._repeatable = repeatable
        self._end = None if limit is None else time.monotonic() + limit
        self._pauses = [0.2, 0.02, 0.0]

    def left(self) -> float | None:
        """Returns the seconds that are left of the request's time."""
        return None if self._end is None else max(self._end - time.monotonic(), 0.001)

    def after(self, error: Error, session: Session) -> float | None:
        """Returns the seconds after which the request is sent again; None if `error` is final."""
        client = self._client
        if not client._reconnect or client._closed or session.closed is None:
            return None
        if not isinstance(error, LeavingError):
            repeatable, self._repeatable = self._repeatable, False
            return 0.0 if repeatable else None
        if self._pauses:
            return self._pauses.pop()
        return None if self._end is None or time.monotonic() + 0.2 > self._end else 0.2
