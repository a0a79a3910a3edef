"""A shorter run of the reinforcement learning example learns although a worker is killed, and copies nothing between
processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

import sharedtensor as st

RL = ROOT / "examples" / "rl"
sys.path.insert(0, str(RL))
import agents  # noqa: E402


def has_torch() -> bool:
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_training_learns_with_a_killed_worker(programs: Path, framework: str) -> None:
    if framework == "torch" and not has_torch():
        pytest.skip("torch is not installed")
    goal = 70  # a random policy has 22; the full example trains to 400
    command = [
        sys.executable,
        RL / "train.py",
        "--programs",
        programs,
        "--framework",
        framework,
        "--goal",
        str(goal),
        "--kill-after",
        "1",
    ]
    env = {**os.environ, "PYTHONPATH": str(Path(st.__file__).parent.parent), "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        [*command, "--seconds", "180", "--json"], capture_output=True, text=True, env=env, timeout=240
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["reward"] > goal and result["framework"] == framework
    assert 0 < result["killed"] < result["returned"]
    assert result["copied"] == 0 and result["in_place"] > 100_000
    assert result["slabs"] <= 8, "each version took new memory"
    assert all(text in done.stdout for text in ("worker 1 is killed", "worker 1 is started again", "publish → worker"))


def test_numpy_gradients_match_torch() -> None:
    torch = pytest.importorskip("torch")
    by_hand, by_torch = agents.NumpyAgent(3), agents.TorchAgent(3)
    for net, module in (("actor", by_torch.actor), ("critic", by_torch.critic)):
        for i, layer in enumerate(module):
            layer.weight.data = torch.as_tensor(by_hand.parameters[f"{net}.{i}.weight"].copy())
            layer.bias.data = torch.as_tensor(by_hand.parameters[f"{net}.{i}.bias"].copy())
    r = np.random.default_rng(1)
    x = r.standard_normal((64, 4)).astype(np.float32)
    batch = agents.Batch(
        x,
        r.integers(0, 2, 64),
        np.full(64, -0.7, np.float32) + r.normal(0, 0.3, 64).astype(np.float32),
        r.standard_normal(64).astype(np.float32),
        r.standard_normal(64).astype(np.float32),
    )
    assert np.allclose(by_hand.value(x), by_torch.value(x), atol=1e-5)
    by_hand.learn(batch, 1e-3)
    by_torch.learn(batch, 1e-3)
    for name, value in by_torch.state_dict().items():
        assert np.allclose(by_hand.parameters[name], value.numpy(), atol=2e-4), name
