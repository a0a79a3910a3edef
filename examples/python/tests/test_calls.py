"""Calls, streams, tasks and managed objects against the Go owner of examples/service."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta, timezone

import cbor2
import numpy as np
import pytest
from conftest import Owner, eventually

import sharedtensor as st
from sharedtensor import values
from sharedtensor.memory import SlabPool


def test_tensors_are_shared_in_both_directions(client: st.Client) -> None:
    x = st.empty((10_000,), framework="numpy")
    x[:] = np.arange(10_000)
    y = client.call("transform", x=x, scale=2, shift=1)
    assert np.array_equal(y, 2 * np.arange(10_000) + 1) and not y.flags.writeable
    made = client._pool.made
    client.call("transform", x=x[::2].copy(), scale=2.0)
    assert client._pool.made == made + 1, "an ordinary array is copied into one slab"
    client.call("transform", x=x, scale=2.0)
    client.call("transform", x=y, scale=2.0)
    client.call("transform", x=client.acquire("base")["layers.0.weight"], scale=2.0)
    assert client._pool.made == made + 1, "memory that is shared was copied"


def test_results_and_arguments_of_any_layout(client: st.Client) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for arg in (x.T, x[::-1], x[:, 1:3], np.array(3, np.float32), x[:0], np.broadcast_to(x[0], (2, 4))):
        assert np.array_equal(client.call("transform", x=arg, scale=1), arg)


def test_errors_are_classes(client: st.Client) -> None:
    with pytest.raises(st.ProviderError) as err:
        client.call("nothing like that")
    assert err.value.code == 2 and isinstance(err.value, st.EndpointNotFoundError)
    with pytest.raises(st.SerializationError):
        client.call("transform", x=3)
    with pytest.raises(st.SerializationError, match="field x: it is missing"):
        client.call("transform", scale=1)
    with pytest.raises(st.SerializationError, match="field scale: it is missing"):
        client.call("transform", x=np.ones(1, np.float32), scale=None)
    with pytest.raises(st.SerializationError, match="object"):
        client.call("transform", x=object())
    with pytest.raises(st.TaskError) as failed:
        client.call("build_model", hidden_size=-1, layers=1)
    assert failed.value.code in (5, 18)


def test_an_argument_is_a_value_or_fields(client: st.Client) -> None:
    y = client.call("transform", {"x": np.ones(2, np.float32), "scale": 3.0})
    assert y.tolist() == [3, 3]
    with pytest.raises(TypeError):
        client.call("transform", {"scale": 3.0}, x=1)


def test_plain_values_as_arguments(client: st.Client) -> None:
    session, pool = client._session(), SlabPool()
    when = datetime(2026, 1, 2, 3, 4, 5, 678, timezone(timedelta(hours=1)))
    out = values.Outgoing(
        {"t": when, "d": timedelta(seconds=1.5), "n": np.int16(-3), "f": np.float32(0.5), "l": (1, [None])},
        session,
        pool,
    )
    assert cbor2.loads(out.item) == {
        "t": "2026-01-02T02:04:05.000678000Z",
        "d": 1_500_000_000,
        "n": -3,
        "f": 0.5,
        "l": [1, [None]],
    }
    for bad in (datetime(2026, 1, 1), 1j, {1.5: 0}, {True: 0}):
        with pytest.raises(st.SerializationError):
            values.Outgoing(bad, session, pool)
    deep: list[object] = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(st.SerializationError, match="deep"):
        values.Outgoing(deep, session, pool)


def test_stream_in_order_with_credit(client: st.Client) -> None:
    a = np.eye(8, dtype=np.float32) * 3
    estimates = list(client.stream("spectral_norm", a=a, steps=100))
    assert [e["step"] for e in estimates] == list(range(1, 101)) and estimates[-1]["value"] == pytest.approx(3)
    with client.stream("spectral_norm", a=a, steps=1_000_000) as stream:
        assert next(stream)["step"] == 1
    with pytest.raises(StopIteration):
        next(stream)
    stream = client.stream("spectral_norm", a=a, steps=1_000_000)
    next(stream)
    del stream
    eventually(lambda: client.info().stats.inflight <= 1, "a stream that nobody reads goes on")
    with pytest.raises(st.InvalidArgumentError):
        list(client.stream("spectral_norm", a=a[0], steps=1))


def test_task_with_progress(client: st.Client) -> None:
    seen: list[st.TaskInfo] = []
    task = client.submit("build_model", hidden_size=24, layers=4, pace_ms=30)
    model = task.wait(progress=seen.append)
    assert isinstance(model, st.StateDict) and len(model) == 4 and model["layers.0.weight"].shape == (24, 24)
    assert len(seen) >= 3 and seen[-1].state == "completed" and seen[-1].total == 4
    assert "build_model" in repr(seen[0]) and task.id in repr(client.tasks())
    assert client.task(task.id).result()["layers.3.weight"].shape == (24, 24)
    with pytest.raises(st.TaskNotFoundError):
        client.task("0" * 32)


def test_cancelled_and_failed_tasks(client: st.Client) -> None:
    task = client.submit("build_model", hidden_size=33, layers=1000, pace_ms=50)
    with pytest.raises(st.TaskNotCompleteError):
        task.result()
    with pytest.raises(st.DeadlineExceededError):
        task.wait(timeout=0.1)
    assert task.cancel()
    with pytest.raises(st.TaskCancelledError):
        task.wait(timeout=10)
    assert not task.cancel()
    with pytest.raises(st.TaskFailedError) as err:
        client.submit("build_model", hidden_size=-5, layers=1).wait(timeout=10)
    assert isinstance(err.value.__cause__, st.InvalidArgumentError), "the cause is the error of the function"


def test_watching_tasks(client: st.Client) -> None:
    with client.watch_tasks(endpoint="build_model", mine=True) as watch:
        client.submit("build_model", hidden_size=25, layers=2, pace_ms=10)
        states = [watch.next(timeout=10).state]
        while states[-1] != "completed":
            states.append(watch.next(timeout=10).state)
    assert "running" in states


def test_a_deadline_ends_the_function(client: st.Client) -> None:
    begin = time.monotonic()
    with pytest.raises(st.DeadlineExceededError):
        client.call("build_model", hidden_size=34, layers=1000, pace_ms=100, timeout=0.3)
    assert time.monotonic() - begin < 5


def test_managed_object_lives_as_long_as_its_tensors(module_owner: Owner, client: st.Client) -> None:
    model = client.call("build_model", hidden_size=40, layers=2)
    weight = model["layers.0.weight"]
    del model
    assert [o.endpoint for o in client.objects()].count("build_model") >= 1
    ids = {o.id for o in client.objects("build_model") if o.mine}
    assert ids
    del weight
    eventually(
        lambda: not {o.id for o in client.objects() if o.mine and o.id in ids}, "the reference stays without a tensor"
    )

    held = client.call_object("build_model", hidden_size=41, layers=1)
    assert held.id in repr(client.objects()) and client.object(held.id).refs == 1
    with st.connect(module_owner.socket, framework="numpy") as other:
        assert other.call_object("build_model", hidden_size=41, layers=1).id == held.id
        other.destroy(held.id)
    eventually(lambda: bool(held.stale), "the holder does not hear that the object was destroyed")
    assert "uid" in held.stale or held.stale
    assert held.value["layers.0.weight"].shape == (41, 41)
    with pytest.raises(st.StaleHandleError) as err:
        client.object(held.id)
    assert err.value.reason == "object_missing" and err.value.object == held.id


def test_one_client_in_sixteen_threads(client: st.Client) -> None:
    errors: list[BaseException] = []

    def work(n: int) -> None:
        try:
            for i in range(20):
                x = np.full(10 + n, i, np.float32)
                assert np.array_equal(client.call("transform", x=x, scale=n, shift=1), x * n + 1)
                assert client.acquire("base")["layers.0.weight"].shape == (64, 64)
                version = client.publish(f"thread-{n}", {"x": x})
                assert version == i + 1 and np.array_equal(client.acquire(f"thread-{n}", version)["x"], x)
        except BaseException as err:
            errors.append(err)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def test_endpoints_and_server(client: st.Client) -> None:
    table = repr(client.endpoints())
    assert "hidden_size: int64" in table and "stream" in table and "managed" in table
    info = client.info()
    assert info.sessions[0].self and info.raw.pid == client.server.pid
    assert "python" in repr(info) and "<table>" in info._repr_html_()
    assert 0 < client.ping() < 5
    assert client.invalidate("build_model") >= 0
