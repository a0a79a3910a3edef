"""What a forked child does with what it inherits: locks that other threads of the parent held, and connections."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

_Forked = Callable[[Any], None]
_tracked: weakref.WeakKeyDictionary[Any, tuple[dict[str, Callable[[], Any]], _Forked | None]] = (
    weakref.WeakKeyDictionary()
)


def track(owner: Any, *, forked: _Forked | None = None, **locks: Callable[[], Any]) -> None:
    """Makes the locks of an object, and makes them anew in each forked child: there the threads that held them do not
    exist, so they would never be released.

    :param forked: called with the object in each forked child, when all locks are new.
    :param locks: the attributes of the object, and what makes them: ``_lock=threading.Lock``.
    """
    for name, make in locks.items():
        setattr(owner, name, make())
    _tracked[owner] = locks, forked


def _after_fork() -> None:
    inherited = list(_tracked.items())
    for owner, (locks, _) in inherited:
        for name, make in locks.items():
            setattr(owner, name, make())
    for owner, (_, forked) in inherited:
        if forked is not None:
            forked(owner)


os.register_at_fork(after_in_child=_after_fork)
