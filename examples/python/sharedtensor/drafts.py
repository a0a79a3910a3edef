"""The memory of a version while a program writes it."""

from __future__ import annotations

import os
from typing import NoReturn

from . import forks, memory
from .errors import InvalidArgumentError
from .memory import Mapping, Slab


class Draft(Mapping):
    """A slab of publications, mapped a second time for the program that fills it.

    Until `freeze`, writes reach the slab and no other process can receive it. Afterwards the same addresses are a
    private copy-on-write view, so tensors over it stay valid and cannot change what was published. The view has a
    separate description of the file: while it exists, `Slab.exclusive` is false and the slab is not filled again.

    In a forked child the memory becomes private at once, because only the parent publishes it.
    """

    __slots__ = ("_length", "_slab")

    def __init__(self, slab: Slab) -> None:
        self._slab: Slab | None = slab
        self._length = slab.size
        base = memory.duplicate(slab.address, slab.size)
        self._hold(base, slab.size, os.dup(slab.fd))
        self.nbytes = slab.nbytes
        self.writable = True
        forks.track(self, forked=Draft._forked)

    def freeze(self) -> None:
        """Makes the memory private and findable for calls. The slab receives no further writes through it."""
        slab = self._slab
        if slab is None:
            return
        fd = slab.share()
        try:
            memory.map_private(self.address, self._length, fd)
            os.dup2(fd, self.fd, inheritable=False)
        finally:
            os.close(fd)
        self._become_private()
        memory.register(self)

    def abandon(self) -> None:
        """Gives up the slab. Tensors stay writable, in memory that nobody else receives."""
        self._slab = None

    def share(self, *, writable: bool = False) -> int:
        """Returns a read-only descriptor. Raises InvalidArgumentError before `freeze`."""
        if self.writable:
            self._refuse()
        return super().share(writable=writable)

    def _refuse(self) -> NoReturn:
        raise InvalidArgumentError("the version is not committed yet: commit it before its state dict is passed on")

    def _become_private(self) -> None:
        self._slab = None
        self.writable = False
        self.private = True

    def _forked(self) -> None:
        if self.writable:
            memory.map_private(self.address, self._length, self.fd)
            self._become_private()
