"""What a client does when its connection is lost: it connects again and renews what it had at the server."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING

from . import objects
from .errors import ClosedError, Error, InternalError, PermissionDeniedError, ProtocolError
from .session import Session

if TYPE_CHECKING:
    from .connection import Connection
    from .watching import Watch
    from .workers import Offer


def resume(me: weakref.ref[Connection], session: Session) -> None:
    """Renews over a new session what the client had over the last one: watches, offers, leases, references."""
    client = me()
    if client is None:
        return
    renewed: list[Watch | Offer] = [*client._watchers.members(), *client._offers]
    for each in renewed:
        try:
            each.begin(session)
        except Error as err:
            if session.closed is None:
                each.fail(err)
        except Exception as err:
            each.fail(InternalError(f"it cannot be renewed over a new connection: {err!r}"))
    _renew_held(client, session)


def _renew_held(client: Connection, session: Session) -> None:
    client._leases.take_again(session)
    client._references.take_again(session)
    if len(client._references):
        objects.watch(session, client._references)


def renew_late(me: weakref.ref[Connection]) -> None:
    """Renews leases and references that came in answers of a session that ends. Does not wait."""
    client = me()
    session = None if client is None else client._ready()
    if session is None:
        start_to_look(me)
        return
    made = session

    def job() -> None:
        client = me()
        if client is not None:
            _renew_held(client, made)

    session.later(job)


def start_to_look(me: weakref.ref[Connection]) -> None:
    """Runs `look_again` in a thread."""
    threading.Thread(target=look_again, args=(me,), name="sharedtensor reconnect", daemon=True).start()


def look_again(me: weakref.ref[Connection]) -> None:
    """Reconnects, until the server is back or the client has nothing to renew there. A server that refuses this client
    for good ends what waits for it."""
    pause = 0.02
    while True:
        client = me()
        if client is None or client._closed or client.connected or not client._renews():
            return
        try:
            client._open(0)
            return
        except (PermissionDeniedError, ProtocolError) as err:
            client._give_up(err)
            return
        except ClosedError:
            return
        except (Error, OSError, RuntimeError, MemoryError):
            pass  # no server, or no descriptors or threads in this process: later there may be
        del client
        time.sleep(pause)
        pause = min(pause * 1.5, 1.0)
