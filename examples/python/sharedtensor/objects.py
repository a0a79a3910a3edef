"""Managed objects of the server: listing them, and receiving their end."""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any

from . import forks, messages, tables
from .calls import References
from .errors import Error
from .frames import Frame
from .op import Op
from .operations import Operation, Steps, plain
from .session import Session


def info(id: str) -> Operation[messages.ObjectInfo]:
    """Requests the description of an object."""
    return plain(Op.OBJECT_INFO, messages.Object(id=id), messages.ObjectInfo)


def destroy(id: str) -> Operation[messages.ObjectInfo]:
    """Destroys an object although it has holders."""
    return plain(Op.DESTROY_OBJECT, messages.Object(id=id), messages.ObjectInfo, repeatable=False)


def listing(endpoints: list[str], after: int) -> Operation[messages.ObjectsListed]:
    """Lists the objects behind `after`."""
    return plain(Op.OBJECTS, messages.Objects(endpoints=endpoints, after=after), messages.ObjectsListed)


def all_objects(endpoints: list[str]) -> Steps[Any]:
    """Lists all objects, part by part."""
    found = Objects()
    after = 0
    while True:
        page = yield listing(endpoints, after)
        found.extend(page.objects)
        if not page.next:
            return found
        after = page.next


_watched: weakref.WeakSet[Session] = weakref.WeakSet()
_watched_lock = threading.Lock()
forks.track(sys.modules[__name__], _watched_lock=threading.Lock)


def watch(session: Session, references: References) -> None:
    """Has references marked stale when the server destroys their objects. Once for each session."""
    with _watched_lock:
        if session in _watched:
            return
        _watched.add(session)

    def gone(frame: Frame) -> None:
        frame.close()
        event = messages.ObjectGone.decode(frame.body)
        references.gone(event.id, event.reason)

    try:
        session.start(Op.WATCH_OBJECTS, messages.WatchObjects(), events=gone)
    except Error:
        pass  # the session has ended, and the references with it


class Objects(list[messages.ObjectInfo]):
    """Managed objects as `Client.objects` returns them: a list that prints as a table."""

    def table(self) -> tables.Table:
        """Returns one row an object."""
        rows = []
        for o in self:
            holders = ", ".join(f"{h.label or h.pid} ({h.refs})" for h in o.holders)
            rows.append((o.id, o.endpoint, tables.size(o.nbytes), str(o.refs), tables.age(o.created_at), holders))
        return tables.Table(["object", "endpoint", "bytes", "references", "age", "held by"], rows)

    def __repr__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()
