"""Models in other processes: multiprocessing, DataLoader and Ray receive references, not weights."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from conftest import Owner

import sharedtensor as st


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [str(Path(st.__file__).parent.parent), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))


def look(model: st.Model) -> tuple[float, tuple[int, int], int]:
    """Runs in another process."""
    return float(model["w"].sum()), model.mappings[0].inode(), os.getpid()


@pytest.fixture
def model(module_owner: Owner) -> object:
    with st.connect(module_owner.socket, framework="numpy") as c:
        c.publish("elsewhere", {"w": np.ones(100_000), "v": np.full(10, 2.0)})
        yield c.acquire("elsewhere")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_pool_receives_a_reference(model: st.Model, method: str) -> None:
    with multiprocessing.get_context(method).Pool(1) as pool:
        total, inode, pid = pool.apply_async(look, (model,)).get(120)
    assert total == 100_000 and inode == model.mappings[0].inode() and pid != os.getpid()


def test_a_part_stays_a_part(module_owner: Owner, model: st.Model) -> None:
    with st.connect(module_owner.socket, framework="numpy") as c:
        part = c.acquire("elsewhere", tensors=["v"])
        again = pickle.loads(pickle.dumps(part))
        assert list(again) == ["v"] and again.partial and again.nbytes == part.nbytes


class Rows:
    """A dataset over a model."""

    def __init__(self, model: st.Model) -> None:
        self.model = model

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> tuple[float, int]:
        return float(self.model["v"].sum()) + i, self.model.mappings[0].inode()[1]


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_data_loader_receives_a_reference(model: st.Model, method: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    loader = torch.utils.data.DataLoader(Rows(model), batch_size=4, num_workers=1, multiprocessing_context=method)
    rows = list(loader)
    assert torch.cat([values for values, _ in rows]).tolist() == [20.0 + i for i in range(8)]
    assert {int(n) for _, inodes in rows for n in inodes} == {model.mappings[0].inode()[1]}


def test_ray_receives_a_reference(model: st.Model) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    try:
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
    except Exception as err:
        pytest.skip(f"ray does not start here: {err}")
    try:
        remote = ray.remote(look)
        total, inode, pid = ray.get(remote.remote(model), timeout=120)
        assert total == 100_000 and inode == model.mappings[0].inode() and pid != os.getpid()
    finally:
        ray.shutdown()
