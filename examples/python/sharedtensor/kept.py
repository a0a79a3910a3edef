"""Memory of arguments that the server keeps mapped between calls."""

from __future__ import annotations

import threading
from collections import OrderedDict

from . import forks

FEATURE = "keep"
"""The feature of servers that keep memory of arguments."""
MAX_KNOWN = 64
"""Mappings that a server keeps for a client."""
MAX_MISSES = 2
"""Consecutive misses after which memory is always sent in full: a function that writes its arguments keeps none."""


class _Known:
    __slots__ = ("handle", "kept", "misses")

    def __init__(self) -> None:
        self.kept = False
        self.misses = 0
        self.handle = b""


class Kept:
    """Tracks, for one session, which memory its server keeps, by the numbers of mappings. Memory gets a number with its
    second call: mapping memory that is used once again costs more than it saves."""

    _lock: threading.Lock

    def __init__(self) -> None:
        self._known: OrderedDict[int, _Known] = OrderedDict()  # the most recently used is last
        forks.track(self, _lock=threading.Lock)

    def use(self, number: int) -> tuple[bool, bytes | None, bool]:
        """Records that a call uses memory. Returns whether to ask the server to keep it, the encoded handle that names
        it without a descriptor, if the server keeps it, and whether `answered` has nothing to record."""
        with self._lock:
            known = self._known.get(number)
            if known is None:
                self._known[number] = _Known()
                if len(self._known) > MAX_KNOWN:
                    self._known.popitem(last=False)
                return False, None, True
            self._known.move_to_end(number)
            if known.misses >= MAX_MISSES:
                return False, None, True
            return True, known.handle if known.kept else None, known.kept and not known.misses

    def answered(self, sent: dict[int, bytes]) -> None:
        """Records that a call was answered: the server keeps the memory that was sent with a number.

        :param sent: handles without descriptors, by the numbers of the memory.
        """
        with self._lock:
            for number, handle in sent.items():
                known = self._known.get(number)
                if known is not None:
                    if known.kept:
                        known.misses = 0
                    known.kept, known.handle = True, handle

    def missed(self, sent: dict[int, bytes]) -> bool:
        """Records that a call was refused because the server no longer keeps memory that it named. Returns whether the
        call named any."""
        named = False
        with self._lock:
            for number in sent:
                known = self._known.get(number)
                if known is not None and known.kept:
                    named = True
                    known.kept = False
                    known.misses += 1
        return named


__all__ = ["FEATURE", "Kept"]
