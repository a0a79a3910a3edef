"""What a client does when its connection is lost: it connects again and renews what it had at the server."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING

from . import objects
from .errors import ConnectionLostError, DeadlineExceededError, Error, UnavailableError
from .session import Session

if TYPE_CHECKING:
    from .connection import Connection


def resume(me: weakref.ref[Connection], session: Session) -> None:
    """Renews over a new session what the client had over the last one: watches, offers, leases, references."""
    client = me()
    if client is None:
        return
    for watcher in client._watchers.members():
        try:
            watcher.begin(session)
        except Error as err:
            if session.closed is None:
                watcher.fail(err)
    for offer in [*client._offers]:
        try:
            offer.begin(session)
        except Error as err:
            if session.closed is None:
                offer.fail(err)
    client._leases.take_again(session)
    client._references.take_again(session)
    if len(client._references):
        objects.watch(session, client._references)


def look_again(me: weakref.ref[Connection]) -> None:
    """Reconnects, until the server is back or the client has nothing to renew there."""
    pause = 0.02
    while True:
        client = me()
        if client is None or client._closed or client.connected:
            return
        try:
            client._open(0)
            return
        except (UnavailableError, ConnectionLostError, DeadlineExceededError):
            pass
        except Error:
            return
        del client
        time.sleep(pause)
        pause = min(pause * 1.5, 1.0)
