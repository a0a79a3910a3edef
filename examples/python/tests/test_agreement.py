"""Rules that Go and Python share: where the socket is, and who a peer is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sharedtensor as st
from sharedtensor.users import is_nobody

VARIABLES = ("SHARED_TENSOR_BASE_PATH", "XDG_RUNTIME_DIR", "TMPDIR")
ENVIRONMENTS = [
    {},
    {"TMPDIR": "/var/tmp"},
    {"XDG_RUNTIME_DIR": "/run/user/7"},
    {"XDG_RUNTIME_DIR": "/run/user/7", "TMPDIR": "/var/tmp"},
    {"XDG_RUNTIME_DIR": ""},
    {"SHARED_TENSOR_BASE_PATH": "/x/base", "XDG_RUNTIME_DIR": "/run/user/7", "TMPDIR": "/var/tmp"},
    {"SHARED_TENSOR_BASE_PATH": "", "TMPDIR": "/var/tmp"},
]


def found(command: list[str], given: dict[str, str], effective: bool) -> str:
    """Returns the path of a socket that a program names where no owner is."""
    env = {k: v for k, v in os.environ.items() if k not in VARIABLES} | given
    env["PYTHONPATH"] = str(Path(st.__file__).parent.parent)

    def other_real_user() -> None:
        os.setresuid(4321, 0, 0)

    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=60, preexec_fn=other_real_user if effective else None
    )
    paths = re.findall(r"/[\w./-]+\.sock", done.stdout + done.stderr)
    assert paths, done
    return paths[0]


@pytest.mark.parametrize("effective", [False, True], ids=["one user", "set-user-ID"])
@pytest.mark.parametrize(
    "given", ENVIRONMENTS, ids=lambda given: " ".join(f"{k}={v}" for k, v in given.items()) or "none"
)
def test_the_socket_of_go_and_python(programs: Path, given: dict[str, str], effective: bool) -> None:
    if effective and os.getuid() != 0:
        pytest.skip("needs root")
    mine = found([sys.executable, "-c", "import sharedtensor; print(sharedtensor.socket_path())"], given, effective)
    theirs = found([str(programs / "sharedtensor"), "list"], given, effective)
    assert mine == theirs
    if not given:
        assert mine == f"/tmp/shared-tensor-{os.geteuid()}/shared-tensor-0.sock"


@pytest.mark.parametrize(
    ("uid", "maps", "want"),
    [
        (65534, "0 0 4294967295\n", False),
        (65534, "0 1000 1\n", True),
        (65534, "", True),
        (65534, "0 0 1000\n1000 1000 4294966295\n", False),
        (1000, "0 1000 1\n", False),
    ],
)
def test_the_overflow_user_is_nobody(tmp_path: Path, uid: int, maps: str, want: bool) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/self/uid_map").write_text(maps)
    (tmp_path / "proc/sys/kernel/overflowuid").write_text("65534\n")
    assert is_nobody(uid, tmp_path) is want
