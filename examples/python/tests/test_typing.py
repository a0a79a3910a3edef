"""Types as a program's checker sees them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sharedtensor as st

pytest.importorskip("mypy", reason="mypy is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed: its types are not known")
if torch.__version__ < "2.0":
    pytest.skip("this torch has other names for its types, and mypy does not read it", allow_module_level=True)

PROGRAM = Path(__file__).with_name("typed_program.py")
PACKAGE = Path(st.__file__).parent.parent


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


def mypy(program: Path, cache: Path) -> str:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(cache), str(program)]
    env = {**os.environ, "MYPYPATH": str(PACKAGE) if PACKAGE.name == "python" else ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env, cwd=program.parent)
    return done.stdout + done.stderr


def test_a_strict_program_gets_no_any(cache: Path) -> None:
    found = dict(re.findall(r'typed_program\.py:(\d+): note: Revealed type is "(.*)"', out := mypy(PROGRAM, cache)))
    assert not re.search(r"typed_program\.py:\d+: error", out), out
    want = {
        str(i): line.rpartition("# ")[2].strip()
        for i, line in enumerate(PROGRAM.read_text().splitlines(), 1)
        if "reveal_type(" in line
    }
    assert {line: text.replace("builtins.", "") for line, text in found.items()} == want
    assert not any(re.search(r"\bAny\b", text) for text in found.values())


def test_wrong_programs_are_refused(tmp_path: Path, cache: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import sharedtensor as st\n"
        "c = st.connect(framework='jax')\n"
        "d = st.connect(framework='numpy')\n"
        "@d.endpoint(cache='yes')\n"
        "def f(x: int) -> int:\n"
        "    return x\n"
        "f(1)\n"
        "d.acquire('x')['w'].no_such\n"
    )
    lines = {int(n) for n in re.findall(r"wrong\.py:(\d+): error", mypy(wrong, cache))}
    assert {2, 4, 8} <= lines


ASYNCHRONOUS = """
import asyncio
import sharedtensor as st
async def main() -> None:
    async with await st.aio.connect(framework="numpy", timeout=st.NO_LIMIT) as c:
        @c.endpoint
        async def f(x: int) -> int:
            return x
        @c.endpoint(cache=True)
        async def g(x: int) -> int:
            return x
        m = await c.acquire("m", tensors=["a"])
        print(m["a"].sum())
        n: int = await c.options(returns=int).call("f", x=1)
        async for v in c.follow("m"):
            print(v.version, n)
        async with await c.offer(f=f) as o:
            await o.wait()
        async for item in c.stream("s"):
            print(item)
asyncio.run(main())
"""


def test_a_strict_program_of_asyncio(tmp_path: Path, cache: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(ASYNCHRONOUS)
    out = mypy(program, cache)
    assert not re.search(r"program\.py:\d+: error", out) and re.search(
        r"(?:checked|issues found in) 1 source file", out
    ), out
