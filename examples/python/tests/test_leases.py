"""Leases after a reconnect: memory that cannot be recognized is not the version's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sharedtensor import catalog, messages
from sharedtensor.importing import identities
from sharedtensor.lease import Lease

HANDLE = {"kind": "cuda-ipc", "device": bytes(16), "nbytes": 64, "offset": 0, "file": -1, "blob": b"a" * 64}


class Session:
    """A session of an owner whose version is in memory of a GPU."""

    def __init__(self, published: str, **handle: Any) -> None:
        self.published = published
        self.path, self.uid, self.closed = "/s", 0, None
        self.released: list[int] = []
        self.handles = [messages.Handle(**{**HANDLE, **handle})]

    def request(self, op: Any, body: Any, timeout: float = 0) -> Any:
        manifest = messages.Manifest(
            names="", name_lengths=b"", dtypes=b"", ranks=b"", dims=b"", storage=b"", offsets=b"", strided=b"",
            strides=b"", storages=[], metadata={},
        )  # fmt: skip
        answer = messages.Acquired(name="m", version=1, lease=7, manifest=manifest, handles=self.handles)
        return SimpleNamespace(body=answer.encode(), files=[], close=lambda: None)

    def start(self, op: Any, body: messages.Release) -> None:
        self.released += body.leases

    def later(self, job: Any) -> None:
        job()


@pytest.mark.parametrize(
    ("published", "handle", "same"),
    [
        ("first", {}, True),
        ("second", {}, False),
        ("first", {"blob": b"b" * 64}, False),
        ("first", {"nbytes": 128}, False),
        ("first", {"kind": "cuda-fd", "blob": b""}, False),
        ("first", {"device": b"x" * 16}, False),
    ],
)
def test_a_lease_on_other_memory_of_a_gpu_is_stale(published: str, handle: dict[str, Any], same: bool) -> None:
    first: Any = Session("first")
    lease = Lease(first, 1, "m", 1)
    lease.memory = identities(first.handles, SimpleNamespace(files=[]), first)  # type: ignore[arg-type]
    again: Any = Session(published, **handle)
    catalog._take_again(lease, again)
    assert (lease.stale == "") == same
    assert again.released == ([] if same else [7])
    assert (lease.session is again) == same
    lease.close()
