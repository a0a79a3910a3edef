"""What a client holds and has made."""

from __future__ import annotations

from dataclasses import dataclass

from .memory import PoolStats


@dataclass(frozen=True)
class ClientStats:
    """What a client holds and has made, as `Client.stats` returns it.

    :ivar publications: slabs for `publish` and `create`.
    :ivar arguments: slabs for arguments that were not in shared memory.
    :ivar results: slabs for results of functions that this client offers.
    :ivar free_bytes: of slabs that wait to be used again.
    :ivar leases: on versions that this client holds.
    :ivar references: to managed objects that it holds.
    """

    publications: PoolStats
    arguments: PoolStats
    results: PoolStats
    free_bytes: int
    leases: int
    references: int
