"""Versions of several parts: ranks publish together, and readers attach a part or the whole."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Owner, eventually

import sharedtensor as st
from sharedtensor import aio


@pytest.fixture
def owner(make_owner: Callable[..., Owner]) -> Owner:
    return make_owner("serve")


def rank_of(value: float, rank: int) -> dict[str, np.ndarray]:
    return {"w": np.full(3, value + rank, np.float32), f"only{rank}": np.full(2, rank, np.int64)}


def publish_all(path: str, name: str, value: float, count: int = 2, **options: object) -> list[int | Exception]:
    """Publishes each part by a client and a thread of its own."""
    results: list[int | Exception] = [0] * count

    def run(rank: int) -> None:
        with st.connect(path, framework="numpy") as c:
            try:
                results[rank] = c.publish(name, rank_of(value, rank), part=(rank, count), **options)  # type: ignore[arg-type]
            except Exception as err:
                results[rank] = err

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_parts_become_current_together(owner: Owner) -> None:
    path = owner.socket
    with st.connect(path, framework="numpy") as c:
        assert publish_all(path, "tp", 10, digests=True) == [1, 1]
        parts = [c.acquire("tp", part=(rank, 2)) for rank in range(2)]
        for rank, part in enumerate(parts):
            assert sorted(part) == [f"only{rank}", "w"] and part["w"].tolist() == [10 + rank] * 3
            assert part.part == (rank, 2) and (part.name, part.version) == ("tp", 1)
        whole = c.acquire("tp")
        assert sorted(whole) == ["rank0/only0", "rank0/w", "rank1/only1", "rank1/w"] and whole.part is None
        assert parts[0].version_digest == parts[1].version_digest == whole.verify() != b""
        assert c.acquire("tp", part=1)["w"].tolist() == [11] * 3
        copy = pickle.loads(pickle.dumps(parts[1]))
        assert sorted(copy) == ["only1", "w"] and copy["w"].tolist() == [11] * 3
        late = threading.Thread(target=c.publish, args=("tp", rank_of(20, 0)), kwargs={"part": (0, 2)})
        late.start()
        with c.follow("tp", part=1) as follower:
            eventually(lambda: bool(listed(c).incomplete), "the first part has arrived")
            assert follower.current.version == 1 and c.acquire("tp").version == 1
            assert c.publish("tp", rank_of(20, 1), part=(1, 2)) == 2
            late.join(60)
            newer = follower.wait_newer(1, timeout=60)
            assert (newer.version, newer["w"].tolist()) == (2, [21] * 3)
        assert parts[0]["w"].tolist() == [10] * 3, "readers keep the version that they have"


def listed(c: st.Client) -> Any:
    from sharedtensor import messages
    from sharedtensor.op import Op
    from sharedtensor.operations import mapped

    return c._run(mapped(Op.LIST, messages.List(), messages.Listed, lambda answer: answer))


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"part": (2, 2)}, st.InvalidArgumentError, "count from 0"),
        ({"part": (0, 0)}, st.InvalidArgumentError, "at least one"),
        ({"part": 1}, st.InvalidArgumentError, "number of parts"),
        ({"part": (-1, 2)}, st.InvalidArgumentError, "count from 0"),
        ({"part": (0, 1 << 20)}, st.InvalidArgumentError, "parts at most"),
        ({"part": (0, 2), "part_key": "k" * 300}, st.InvalidArgumentError, "bytes at most"),
    ],
)
def test_parts_that_do_not_exist(client: st.Client, options: dict[str, object], error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        client.publish("none", rank_of(0, 0), **options)  # type: ignore[arg-type]
    assert not [m for m in client.list() if m.name == "none"]


def test_readers_of_parts_that_do_not_exist(owner: Owner) -> None:
    assert publish_all(owner.socket, "tp", 1) == [1, 1]
    with st.connect(owner.socket, framework="numpy") as c:
        c.publish("plain", rank_of(0, 0))
        for name, part in (("tp", (0, 3)), ("tp", 2), ("plain", 0)):
            with pytest.raises(st.InvalidArgumentError) as caught:
                c.acquire(name, part=part)
            assert caught.value.type == "part"
        with pytest.raises(st.InvalidArgumentError, match="made of 2 parts"):
            c.publish("tp", rank_of(0, 0))


def test_withdrawn_before_all_parts_came(owner: Owner) -> None:
    with st.connect(owner.socket, framework="numpy") as c, st.connect(owner.socket) as other:
        failed: list[Exception] = []

        def run() -> None:
            try:
                c.publish("tp", rank_of(0, 0), part=(0, 2), part_key="step 7")
            except Exception as err:
                failed.append(err)

        waiting = threading.Thread(target=run)
        waiting.start()
        eventually(lambda: bool(listed(other).incomplete), "the part waits")
        with pytest.raises(st.InvalidArgumentError, match="step 7"):
            other.publish("tp", rank_of(0, 1), part=(1, 2), part_key="step 8")
        other.withdraw("tp")
        waiting.join(60)
        assert isinstance(failed[0], st.IncompleteVersionError) and isinstance(failed[0], TimeoutError)


def test_asyncio_publishes_and_follows_parts(owner: Owner) -> None:
    async def run() -> None:
        async with await aio.connect(owner.socket, framework="numpy") as c:
            both = (c.publish("tp", rank_of(5, rank), part=(rank, 2)) for rank in range(2))
            assert await asyncio.gather(*both) == [1, 1]
            model = await c.acquire("tp", part=1)
            assert model["w"].tolist() == [6] * 3
            async with c.follow("tp", part=(0, 2)) as follower:
                assert (await follower.wait_newer(0, timeout=60))["w"].tolist() == [5] * 3

    asyncio.run(run())


def test_a_part_keeps_its_lease_when_the_owner_is_replaced(programs: Path, make_owner: Callable[..., Owner]) -> None:
    """The lease is renewed as one of the part, whose memory is compared."""
    owner = make_owner("serve")
    with st.connect(owner.socket, framework="numpy", reconnect=60) as c:
        assert publish_all(owner.socket, "tp", 3) == [1, 1]
        model = c.acquire("tp", part=(1, 2))
        before = c.server.server
        command = [str(programs / "sharedtensor"), "upgrade", "--socket", owner.socket]
        subprocess.run(command, check=True, timeout=60, capture_output=True)
        eventually(lambda: c.connected and c.server.server != before, "the client is at the new owner")
        eventually(lambda: model.stale != "" or c.list()[0].versions[0].holders != [], "the lease is renewed")
        assert not model.stale and model["w"].tolist() == [4] * 3
        assert c.acquire("tp", part=1)["w"].tolist() == [4] * 3
        os.kill(c.server.pid, signal.SIGTERM)  # the fixture ends the first owner
