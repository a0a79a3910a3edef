"""Checkpoints of torch.distributed.checkpoint in an owner's memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Owner, eventually

import sharedtensor as st

torch = pytest.importorskip("torch", reason="torch is not installed")
if torch.__version__ < "2.3":
    pytest.skip("torch.distributed.checkpoint of this torch is another one", allow_module_level=True)

import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.api import CheckpointException  # noqa: E402

from sharedtensor import checkpoint  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def tclient(module_owner: Owner) -> object:
    with st.connect(module_owner.socket, framework="torch") as c:
        yield c


def state(value: float) -> dict[str, object]:
    return {
        "model": {"w": torch.full((4, 3), value), "half": torch.full((2,), value, dtype=torch.bfloat16)},
        "step": int(value),
        "names": ["a", "b"],
    }


def test_a_checkpoint_is_saved_and_loaded(tclient: st.Client) -> None:
    writer = checkpoint.Writer("saved", client=tclient, source="test")
    dcp.save(state(3), storage_writer=writer, no_dist=True)
    loaded = state(0)
    dcp.load(loaded, storage_reader=checkpoint.Reader("saved", client=tclient), no_dist=True)
    assert torch.equal(loaded["model"]["w"], torch.full((4, 3), 3.0)) and loaded["step"] == 3
    assert loaded["model"]["half"].dtype == torch.bfloat16 and loaded["names"] == ["a", "b"]
    dcp.save(state(4), storage_writer=writer, no_dist=True)
    assert writer.version == 2 and torch.equal(tclient.acquire("saved")["model.w"], torch.full((4, 3), 4.0))
    # a withdrawn part is listed until the leases of its last readers have ended, also of readers within this process
    eventually(lambda: [m.name for m in tclient.list() if m.name.startswith("saved")] == ["saved"], "no part is left")


def test_a_published_version_is_a_checkpoint(tclient: st.Client) -> None:
    module = torch.nn.Linear(3, 2)
    tclient.publish("published", module.state_dict())
    other = torch.nn.Linear(3, 2)
    weights = other.state_dict()
    dcp.load(weights, storage_reader=checkpoint.Reader("published", client=tclient), no_dist=True)
    assert torch.equal(other.weight, module.weight) and torch.equal(other.bias, module.bias)
    reader = checkpoint.Reader("published", client=tclient)
    with pytest.raises((CheckpointException, ValueError), match=r"(?i)size|missing|shape"):
        dcp.load({"weight": torch.ones(7, 7)}, storage_reader=reader, no_dist=True)


def test_values_that_would_execute_code_are_refused(tclient: st.Client) -> None:
    import io
    import json
    import pickle

    class Evil:
        def __reduce__(self) -> object:
            return os.system, ("true",)

    data = io.BytesIO()
    torch.save(Evil(), data, pickle_module=pickle)
    tensors = {"step": torch.frombuffer(bytearray(data.getvalue()), dtype=torch.uint8)}
    tclient.publish("evil", tensors, metadata={checkpoint.KEY: json.dumps({"bytes": ["step"]})})
    with pytest.raises(CheckpointException, match="loaded safely"):
        dcp.load({"step": 1}, storage_reader=checkpoint.Reader("evil", client=tclient), no_dist=True)


RANK = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
import sharedtensor as st
from sharedtensor import checkpoint

socket, store, rank, action = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
full = torch.arange(20, dtype=torch.float32).reshape(5, 4)
with st.connect(socket, framework="torch") as c:
    if action == "save":
        weights = {"w": distribute_tensor(full, mesh, [Shard(0)]), "b": torch.ones(3)}
        dcp.save(weights, storage_writer=checkpoint.Writer("ranks", client=c))
    else:
        weights = {"w": distribute_tensor(torch.zeros(5, 4), mesh, [Shard(1)]), "b": torch.zeros(3)}
        dcp.load(weights, storage_reader=checkpoint.Reader("ranks", client=c))
        assert torch.equal(weights["w"].to_local(), full[:, 2 * rank : 2 * rank + 2]), weights
dist.barrier()
os._exit(0)  # gloo sometimes aborts a process that destroys its group or ends its interpreter
"""


def ranks(owner: Owner, folder: Path, action: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(st.__file__).parent.parent)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, owner.socket, str(folder / action), str(rank), action],
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors


def test_ranks_save_shards_that_other_layouts_load(module_owner: Owner, tclient: st.Client, tmp_path: Path) -> None:
    ranks(module_owner, tmp_path, "save")
    model = tclient.acquire("ranks")
    assert {"w@0", "w@1"} <= set(model) and len(model.mappings) == 2
    whole = {"w": torch.zeros(5, 4), "b": torch.zeros(3)}
    dcp.load(whole, storage_reader=checkpoint.Reader("ranks", client=tclient), no_dist=True)
    assert torch.equal(whole["w"], torch.arange(20, dtype=torch.float32).reshape(5, 4))
    ranks(module_owner, tmp_path, "load")
