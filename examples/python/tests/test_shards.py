"""Versions of several parts, published by several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import Owner

import sharedtensor as st
from sharedtensor import shards
from sharedtensor.shards import Shard

RANK = """
import sys
import numpy as np
import sharedtensor as st
from sharedtensor import shards
rank = int(sys.argv[2])
with st.connect(sys.argv[1], framework="numpy") as c:
    local = {"w": np.full((2, 3), rank, np.float32), "bias": np.arange(3, dtype=np.float32)}
    shards.publish(c, "sharded", local, rank=rank, count=3, step=7, shards={"w": shards.Shard((6, 3), (2 * rank, 0))})
"""


def test_ranks_publish_parts_that_are_joined_without_a_copy(module_owner: Owner, client: st.Client) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(st.__file__).parent.parent)}
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, module_owner.socket, str(rank)], env=env) for rank in range(3)
    ]
    version = shards.join(client, "sharded", count=3, step=7, wait=60)
    assert [rank.wait(60) for rank in ranks] == [0, 0, 0]
    model = client.acquire("sharded", version)
    assert sorted(model) == ["bias", "w@0", "w@1", "w@2"] and len(model.mappings) == 3
    assert shards.assemble(model, "w")[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    part = shards.acquire(client, "sharded", rank=1)
    assert set(part) == {"bias", "w@1"} and len(part.mappings) == 2
    mine = shards.local(part, 1)
    assert set(mine) == {"bias", "w"} and (mine["w"] == 1).all()
    assert {m.inode() for m in part.mappings} < {m.inode() for m in model.mappings}
    assert not [m.name for m in client.list() if m.name.startswith("sharded/")], "the parts are still published"


def test_parts_of_other_steps_are_not_joined(client: st.Client) -> None:
    x = {"w": np.zeros(2)}
    for rank, step in ((0, 1), (1, 2)):
        shards.publish(client, "mixed", x, rank=rank, count=2, step=step, shards={"w": Shard((4,), (2 * rank,))})
    with pytest.raises(st.DeadlineExceededError, match="in time"):
        shards.join(client, "mixed", count=2, step=2, wait=0.2)
    shards.publish(client, "mixed", x, rank=0, count=2, step=2, shards={"w": Shard((4,), (0,))})
    assert shards.join(client, "mixed", count=2, step=2, wait=20) == 1


@pytest.mark.parametrize(
    ("rank", "declared"),
    [(2, {}), (0, {"x": Shard((4,), (0,))}), (0, {"w": Shard((3,), (2,))}), (0, {"w": Shard((4, 1), (0, 0))})],
)
def test_shards_that_do_not_fit(client: st.Client, rank: int, declared: dict[str, Shard]) -> None:
    with pytest.raises(st.InvalidArgumentError):
        shards.publish(client, "bad", {"w": np.zeros(2)}, rank=rank, count=2, step=0, shards=declared)


def test_declarations_of_others_are_checked(client: st.Client) -> None:
    for text in ("[]", "{", '{"w": 3}', '{"w": {"shape": ["x"], "parts": [["w", 0, [0]]]}}'):
        with pytest.raises(st.InvalidArgumentError, match="not valid"):
            shards.pieces({shards.KEY: text})
    declared = '{"w": {"shape": [4], "parts": [["w@0", 0, [3]]]}}'
    client.publish("hostile", {"w@0": np.zeros(2)}, metadata={shards.KEY: declared})
    with pytest.raises(st.InvalidArgumentError, match="within"):
        shards.assemble(client.acquire("hostile"), "w")
    client.publish("hostile", {"w@0": np.zeros(2)}, metadata={shards.KEY: declared.replace("[3]", "[0]")})
    with pytest.raises(st.InvalidArgumentError, match="2 of 4"):
        shards.assemble(client.acquire("hostile"), "w")
    with pytest.raises(st.NotFoundError):
        shards.assemble(client.acquire("base"), "w")
    with pytest.raises(st.NotFoundError):
        shards.acquire(client, "base", rank=0)


WHOLE = (4, 4)
COVERS: dict[str, tuple[list[tuple[tuple[int, int], tuple[int, int]]], str]] = {
    "halves": ([((0, 0), (2, 4)), ((2, 0), (2, 4))], ""),
    "quarters": ([((0, 0), (2, 2)), ((0, 2), (2, 2)), ((2, 0), (2, 2)), ((2, 2), (2, 2))], ""),
    "an empty one": ([((0, 0), (4, 4)), ((4, 0), (0, 4))], ""),
    "one twice, one missing": ([((0, 0), (2, 4)), ((0, 0), (2, 4))], "overlap"),
    "overlapping in part": ([((0, 0), (3, 4)), ((2, 0), (1, 4))], "overlap"),
    "in the middle": ([((0, 0), (4, 2)), ((1, 1), (2, 2)), ((0, 2), (2, 2))], "overlap"),
    "one missing": ([((0, 0), (2, 4))], "8 of 16"),
    "more than all": ([((0, 0), (4, 4)), ((2, 2), (2, 2))], "overlap"),
}


@pytest.mark.parametrize("kind", COVERS)
def test_a_whole_tensor_has_each_element_from_one_shard(client: st.Client, kind: str) -> None:
    parts, wrong = COVERS[kind]
    name = f"cover {kind}"
    expected = np.arange(16, dtype=np.float32).reshape(WHOLE)
    for rank, (at, size) in enumerate(parts):
        local = expected[at[0] : at[0] + size[0], at[1] : at[1] + size[1]].copy()
        shards.publish(client, name, {"w": local}, rank=rank, count=len(parts), step=1, shards={"w": Shard(WHOLE, at)})
    shards.join(client, name, count=len(parts), step=1)
    model = client.acquire(name)
    if not wrong:
        np.testing.assert_array_equal(shards.assemble(model, "w"), expected)
        return
    with pytest.raises(st.InvalidArgumentError, match=wrong):
        shards.assemble(model, "w")
    checkpoint = pytest.importorskip("sharedtensor.checkpoint")
    if kind != "one twice, one missing":
        with pytest.raises(st.InvalidArgumentError, match=wrong):
            checkpoint.Reader(name, client=client).read_metadata()


def test_shards_of_different_types_are_refused(client: st.Client) -> None:
    for rank, dtype in enumerate((np.float32, np.int32)):
        local = {"w": np.ones(2, dtype)}
        shards.publish(client, "types", local, rank=rank, count=2, step=1, shards={"w": Shard((4,), (2 * rank,))})
    shards.join(client, "types", count=2, step=1)
    with pytest.raises(st.InvalidArgumentError, match="float32 and int32"):
        shards.assemble(client.acquire("types"), "w")
