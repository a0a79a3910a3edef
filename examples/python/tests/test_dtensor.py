"""DTensors and modules of FSDP2 on a gloo mesh: whole shards are carried, divided ones are refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Owner

import sharedtensor as st

pytest.importorskip("torch.distributed.tensor")
if not __import__("torch").distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)


@pytest.mark.parametrize("ranks", [1, 2])
def test_dtensors_of_a_mesh(module_owner: Owner, tmp_path: Path, ranks: int) -> None:
    program = Path(__file__).with_name("dtensor_program.py")
    env = {**os.environ, "PYTHONPATH": str(Path(st.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, str(program), module_owner.socket, str(rank), str(ranks), str(tmp_path / "store")],
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    errors = [process.communicate(timeout=120)[1] for process in started]
    assert [process.returncode for process in started] == [0] * ranks, "\n".join(errors)
