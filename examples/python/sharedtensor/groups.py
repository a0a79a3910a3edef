"""Sets of objects that the set does not keep alive."""

from __future__ import annotations

import threading
import weakref
from typing import Generic, TypeVar

from . import forks

T = TypeVar("T")


class WeakGroup(Generic[T]):
    """A weak set that threads may change while others read it. Finalizers of its members must not use it."""

    _lock: threading.Lock

    def __init__(self) -> None:
        forks.track(self, _lock=threading.Lock)
        self._members: weakref.WeakSet[T] = weakref.WeakSet()

    def add(self, member: T) -> None:
        """Adds a member. A member is in the group at most once."""
        with self._lock:
            self._members.add(member)

    def discard(self, member: T) -> None:
        """Removes a member if it is in the group."""
        with self._lock:
            self._members.discard(member)

    def members(self) -> list[T]:
        """Returns the members that are alive."""
        with self._lock:
            return list(self._members)
