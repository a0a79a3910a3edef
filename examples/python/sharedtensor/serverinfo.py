"""The state of a server."""

from __future__ import annotations

from . import messages, tables


class ServerInfo:
    """What `Client.info` returns.

    :ivar raw: the complete message.
    """

    def __init__(self, raw: messages.ServerInfo) -> None:
        self.raw = raw

    @property
    def stats(self) -> messages.ServerStats:
        """Counters and gauges."""
        return self.raw.stats

    @property
    def sessions(self) -> list[messages.SessionInfo]:
        """The connections; the first is the server itself."""
        return self.raw.sessions

    def table(self) -> tables.Table:
        """Returns one row a session."""
        rows = [
            (
                str(s.session),
                str(s.pid),
                s.label,
                tables.age(s.since),
                str(s.leases),
                str(s.objects),
                tables.size(s.nbytes),
                str(s.requests),
            )
            for s in self.raw.sessions
        ]
        return tables.Table(["session", "pid", "program", "age", "leases", "objects", "bytes", "requests"], rows)

    def __repr__(self) -> str:
        r = self.raw
        head = f"server {r.server} of process {r.pid}, version {r.version}, up {r.uptime / 1e9:.0f} s, at {r.socket}"
        memory = ", ".join(f"{m.use} {tables.size(m.nbytes)}" for m in r.memory)
        lost = "".join(
            f"not adopted: {tables.clean(f'{v.name} {v.version}: {v.reason}')}\n" for v in self.raw.not_adopted
        )
        return f"{tables.clean(head)}\nmemory: {tables.clean(memory or 'none')}\n{lost}{self.table()}"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()
