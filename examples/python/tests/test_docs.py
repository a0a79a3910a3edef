"""The programs in README.md and docs/python.md run as they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, Owner, eventually

import sharedtensor as st

torch = pytest.importorskip("torch", reason="torch is not installed: the programs use it")
if torch.__version__ < "2.1":
    pytest.skip("the programs use torch 2.1", allow_module_level=True)

PRELUDE = """
import ast, asyncio, inspect, os, sys
import torch
import sharedtensor as st

model = module = torch.nn.Linear(4, 4)
t = torch.ones(4, 4)

def train(model):
    pass

def evaluate(i):
    return float(i)

if not sys.argv[2:]:
    first = st.connect()
    for _ in range(4):
        first.publish("llm", model.state_dict(), owner_digests=True, digests=True)
        first.publish("policy", model.state_dict())
    c, w = first, first.acquire("llm")
code = compile(open(sys.argv[1]).read(), "README", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
names = {"__name__": "readme", **globals()}
if code.co_flags & inspect.CO_COROUTINE:
    asyncio.run(eval(code, names))
else:
    exec(code, names)
"""


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.S)


README = blocks(ROOT / "examples/python/README.md")
PAGE = blocks(ROOT / "docs/python.md")
WORKER = next(block for block in README if "c.serve(" in block)


def environment(owner: Owner) -> dict[str, str]:
    base = owner.socket.removesuffix("-0.sock")
    return {**os.environ, "SHARED_TENSOR_BASE_PATH": base, "PYTHONPATH": str(Path(st.__file__).parent.parent)}


def test_the_pages_have_programs() -> None:
    assert len(README) >= 3 and len(PAGE) >= 1


@pytest.mark.parametrize("block", [b for b in [*README, *PAGE] if b != WORKER], ids=range(len(README) + len(PAGE) - 1))
def test_program_runs(make_owner: Callable[..., Owner], folder: Path, block: str) -> None:
    owner = make_owner("owner", socket="st-0.sock")
    program = folder / "block.py"
    program.write_text(block)
    command = [sys.executable, "-c", PRELUDE, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment(owner), cwd=folder)
    assert done.returncode == 0, done.stderr


def test_worker_serves(make_owner: Callable[..., Owner], folder: Path) -> None:
    owner = make_owner("serve", "--offers", socket="st-0.sock")
    program = folder / "worker.py"
    program.write_text(WORKER)
    worker = subprocess.Popen([sys.executable, "-c", PRELUDE, str(program), "worker"], env=environment(owner))
    try:
        with st.connect(owner.socket, framework="torch") as c:
            eventually(lambda: {"embed", "steps"} <= {e.name for e in c.endpoints()}, "nothing is offered", 120)
            assert c.call("embed", x=torch.ones(2, 4), scale=0.0).shape == (2, 4)
            assert list(c.stream("steps", n=3)) == [0.0, 1.0, 2.0]
    finally:
        worker.kill()
        worker.wait(30)
