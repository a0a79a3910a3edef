"""Pickles of clients, models, tasks and errors in another process."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Owner, eventually

import sharedtensor as st
from sharedtensor import messages
from sharedtensor.wire_errors import exception_of

CHILD = """
import pickle, sys
first, second = pickle.load(sys.stdin.buffer)
assert type(first).__module__.startswith("sharedtensor")
print(first.name, first.version, first.mappings[0].inode()[1], float(first["w"].sum()), first.stale == "")
print(second["x"] is not None, len(second))
import sharedtensor.pickling
print(len(sharedtensor.pickling._clients))
"""


def run_child(code: str, data: bytes) -> list[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(st.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


def test_a_model_is_a_reference(client: st.Client) -> None:
    client.publish("policy", {"w": np.ones(100_000)})
    client.publish("other", {"x": np.ones(1)})
    first, second = client.acquire("policy"), client.acquire("other")
    data = pickle.dumps(first)
    assert len(data) < 512, "the pickle has more than a reference"
    lines = run_child(CHILD, pickle.dumps((first, second)))
    assert lines[0] == f"policy {first.version} {first.mappings[0].inode()[1]} 100000.0 True"
    assert lines[1:] == ["True 1", "1"], "a process has one connection for all that it unpickles"
    again = copy.copy(first)
    assert again.version == first.version and again.mappings[0].inode() == first.mappings[0].inode()


def test_pickle_of_a_withdrawn_version_fails(client: st.Client) -> None:
    client.publish("short", {"w": np.ones(1)})
    data = pickle.dumps(client.acquire("short"))
    client.withdraw("short")
    with pytest.raises(st.NotFoundError, match="short"):
        eventually(lambda: pickle.loads(data) is None, "the version stays")
    closed = client.acquire("base")
    closed.close()
    with pytest.raises(st.ClosedError, match="pickled"):
        pickle.dumps(closed)


def test_a_pickle_of_another_owner_is_stale(make_owner: Callable[..., Owner]) -> None:
    owner = make_owner("owner")
    with st.connect(owner.socket, framework="numpy") as c:
        data = pickle.dumps(c.acquire("base"))
        assert pickle.loads(data).version == 1
        owner.kill()
        owner.restart()
        with pytest.raises(st.StaleHandleError, match="gone"):
            pickle.loads(data)


def test_forked_child_connects_again(client: st.Client) -> None:
    data = pickle.dumps(client.acquire("base"))
    kept = pickle.loads(data)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if pickle.loads(data)["layers.0.weight"].shape == (64, 64) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 and not kept.stale


def test_a_client_and_a_task_are_references(client: st.Client) -> None:
    with pickle.loads(pickle.dumps(client)) as again:
        assert again.path == client.path and again._framework == "numpy" and again.ping() > 0
    task = client.submit("build_model", hidden_size=16, layers=1)
    assert pickle.loads(pickle.dumps(task)).id == task.id
    task.wait(timeout=30)
    info = pickle.loads(pickle.dumps(task.info))
    assert info.id == task.id and info.over


def test_pickling_errors_name_the_remedy(client: st.Client) -> None:
    result = client.call("build_model", hidden_size=16, layers=1)
    with pytest.raises(TypeError, match="publish it"):
        pickle.dumps(result)
    with client.call_object("build_model", hidden_size=16, layers=1) as held:
        with pytest.raises(TypeError, match="connection"):
            pickle.dumps(held)


def test_errors_keep_their_classes_and_causes() -> None:
    cause = messages.ErrorMessage(code=25, message="no memory", type="out of memory")
    details = messages.ErrorDetails(classes=[messages.ErrorClass(code=21, type="unsupported")], cause=cause)
    err = exception_of(messages.ErrorMessage(code=4, message="no device", type="capability", data=details.plain()))
    again = pickle.loads(pickle.dumps(err))
    assert type(again) is type(err) and isinstance(again, st.UnsupportedError) and str(again) == "no device"
    assert isinstance(again.__cause__, st.OutOfMemoryError) and again.code == 4
    own = pickle.loads(pickle.dumps(st.ApplicationError("used up", type="quota", data={"left": 0})))
    assert (str(own), own.type, own.data, own.code) == ("used up", "quota", {"left": 0}, 27)
    late = pickle.loads(pickle.dumps(st.DeadlineExceededError("too late")))
    assert isinstance(late, TimeoutError) and str(late) == "too late"


@pytest.mark.parametrize("name", sorted(n for n in st.errors.__dict__ if n.endswith("Error")))
def test_each_error_can_be_pickled(name: str) -> None:
    err = getattr(st.errors, name)("what happened")
    err.note = "kept"
    again = pickle.loads(pickle.dumps(err))
    assert type(again) is type(err) and str(again) == "what happened" and again.note == "kept"


def test_descriptions_can_be_pickled(client: st.Client) -> None:
    def same(value: Any) -> None:
        assert repr(pickle.loads(pickle.dumps(value))) == repr(value)

    same(client.acquire("base").specs)
    same(client.list()[0])
    same(client.inspect("base").specs)
    same(client.endpoints())
    same(st.Event("published", "base", 1))
