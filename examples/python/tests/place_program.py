"""test_placements.py runs this program: python place_program.py COMMAND SOCKET. The owner has host memory and two GPUs,
and a budget for placements of `BUDGET` bytes on each."""

from __future__ import annotations

import asyncio
import gc
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import sharedtensor as st
from sharedtensor import cuda
from sharedtensor.cuda_array import CudaArray
from sharedtensor.manifest import TensorSpec, contiguous_strides

BUDGET = 8 << 20
ELEMENTS = 1_500_000
"""Elements of a model: one fits into the budget, two do not."""
LIMIT = 60.0


def eventually(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + LIMIT
    while not condition():
        gc.collect()
        assert time.monotonic() < until, what
        time.sleep(0.01)


def refused(kind: type[Exception], do: Callable[[], object], text: str = "") -> None:
    try:
        do()
    except kind as err:
        assert text in str(err), err
        return
    raise AssertionError("it was not refused")


def values(value: float) -> np.ndarray[Any, Any]:
    return np.arange(ELEMENTS, dtype=np.float32) + np.float32(value)


def publish(c: st.Client[Any], name: str, value: float) -> int:
    return c.publish(name, {"w": values(value), "tied": (b := np.full(5, value)), "b": b})


def show(model: Any, value: float) -> None:
    w, b = model["w"], model["b"]
    assert isinstance(w, CudaArray) and isinstance(b, CudaArray)
    assert np.array_equal(w.numpy(), values(value)) and np.array_equal(b.numpy(), np.full(5, value))


def placements(c: st.Client[Any], name: str) -> list[tuple[bytes, int]]:
    """Returns device and holders of the placements of all versions."""
    versions = c.inspect(name).model.versions
    return sorted((p.device.uuid, p.holders) for version in versions for p in version.placements)


def gpu(ordinal: int) -> bytes:
    return cuda.uuid_of(ordinal)


def acquire(c: st.Client[Any]) -> None:
    """Two processes and two threads of requests have one copy on each device."""
    publish(c, "llm", 1)
    models = [c.acquire("llm", device=device) for device in ("cuda:0", 0, gpu(0), "cuda:1")]
    for model in models:
        show(model, 1)
        assert model.tied() == [["tied", "b"]]
    assert [m.mappings[0].device for m in models] == [gpu(0)] * 3 + [gpu(1)]
    assert {device for device, _ in placements(c, "llm")} == {gpu(0), gpu(1)}
    # Memory that is there already is no copy.
    host = c.acquire("llm", device="cpu")
    assert np.shares_memory(host["w"], host["w"]) and np.array_equal(host["w"], values(1))
    assert len(placements(c, "llm")) == 2
    part = c.acquire("llm", device="cuda:0", tensors=["b"])
    assert list(part) == ["b"] and part["b"].numpy().tolist() == [1] * 5
    # A pickle refers to the version on the device.
    code = "import pickle, sys; m = pickle.load(sys.stdin.buffer); print(m.placement.hex(), m['w'].numpy()[7])"
    given = pickle.dumps(models[3])
    shown = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, timeout=LIMIT, check=True)
    assert shown.stdout.decode().split() == [gpu(1).hex(), "8.0"], shown
    assert len(placements(c, "llm")) == 2
    refused(st.CapabilityError, lambda: c.acquire("llm", device="cuda:2"), "no GPU 2")
    refused(st.InvalidArgumentError, lambda: c.acquire("llm", device="tpu:0"), "tpu:0")
    refused(st.NotFoundError, lambda: c.acquire("none", device="cuda:0"))
    refused(st.VersionNotFoundError, lambda: c.acquire("llm", 99, device="cuda:0"))

    async def main() -> None:
        async with await st.aio.connect(c.path, framework="numpy") as a:
            show(await a.acquire("llm", device="cuda:0"), 1)
            async for model in a.follow("llm", device="cuda:1"):
                show(model, 1)
                return

    asyncio.run(main())
    models.clear()
    del model, part
    eventually(lambda: not placements(c, "llm"), "placements without readers are freed")


def from_gpu(c: st.Client[Any]) -> None:
    """A version that was published on a GPU is placed in host memory and on the other GPU."""
    x = np.arange(1000, dtype=np.float32)
    memory = cuda.SharedMemory.allocate(cuda.device(0), x.nbytes)
    with cuda.device(0).current():
        cuda.call("cuMemcpyHtoD", memory.address, x.ctypes.data, x.nbytes)
    spec = TensorSpec("", st.DType.FLOAT32, x.shape, contiguous_strides(x.shape), 0, 0)
    c.publish("gpu", {"x": CudaArray(memory, spec)})
    origin = c.acquire("gpu")
    host, other, same = (c.acquire("gpu", device=device) for device in ("cpu", "cuda:1", "cuda:0"))
    assert isinstance(host["x"], np.ndarray) and np.array_equal(host["x"], x)
    assert np.array_equal(other["x"].numpy(), x) and np.array_equal(same["x"].numpy(), x)
    assert same.mappings[0].device == origin.mappings[0].device == gpu(0)
    place = host["x"].__array_interface__["data"][0]
    array = host["x"]
    host.sleep()
    host.wake()
    assert np.array_equal(array, x) and host["x"].__array_interface__["data"][0] == place


def to(c: st.Client[Any]) -> None:
    """`to` attaches the placement, and returns what is there in place."""
    publish(c, "to", 2)
    origin = c.acquire("to")
    there = origin.to("cuda:1")
    assert isinstance(there, st.Model) and there.version == origin.version
    show(there, 2)
    assert placements(c, "to") == [(gpu(1), 1)]
    again = there.to("cuda:0")
    show(again, 2)
    refused(st.CapabilityError, lambda: origin.to("cpu"), "numpy")  # as before: torch has tensors in place


def follow(c: st.Client[Any]) -> None:
    """The next version is on the device before it is returned. The program uses the one before meanwhile."""
    publish(c, "policy", 1)
    with c.follow("policy", device="cuda:0") as f:
        first = f.current
        show(first, 1)
        del first
        publish(c, "policy", 2)
        refused(st.ResourceExhaustedError, lambda: f.wait_newer(timeout=LIMIT))  # two do not fit
        show(f._current, 1)
        f._current = None
        eventually(lambda: not placements(c, "policy"), "the placement of the former version is freed")
        show(f.wait_newer(1, timeout=LIMIT), 2)


def sleep(c: st.Client[Any]) -> None:
    """A model that sleeps has no placement, keeps its version, and wakes at the same addresses."""
    sleep_and_wake(c)
    eventually(lambda: len(c.inspect("engine").model.versions) == 1, "nothing holds the superseded version")
    # Without a placement the lease stays, and the memory is only unmapped.
    origin = c.acquire("engine")
    b = origin["b"]
    origin.sleep()
    origin.wake()
    assert b.tolist() == [4] * 5


def sleep_and_wake(c: st.Client[Any]) -> None:
    version = publish(c, "engine", 3)
    model = c.acquire("engine", device="cuda:0")
    w, address = model["w"], model["w"].address

    def asleep() -> None:
        model.sleep()
        model.sleep()
        assert model.asleep and not model.stale
        eventually(lambda: not placements(c, "engine"), "the placement is freed")
        refused(st.CapabilityError, w.numpy)

    def awake() -> None:
        assert not model.asleep and not model.stale and model.version == version
        assert model["w"] is w and w.address == address
        assert placements(c, "engine") == [(gpu(0), 1)]
        show(model, 3)

    asleep()
    publish(c, "other", 4)
    other = c.acquire("other", device="cuda:0")
    refused(st.ResourceExhaustedError, model.wake)  # two do not fit
    assert model.asleep
    del other
    eventually(lambda: not placements(c, "other"), "the other placement is freed")
    model.wake()
    model.wake()
    awake()
    asleep()
    lose(c, model)
    model.map()
    awake()
    lose(c, model)  # a lease on a placement is renewed as one on the version
    show(model, 3)
    asleep()
    restored = pickle.loads(pickle.dumps(model))
    show(restored, 3)
    restored.close()
    del restored
    eventually(lambda: not placements(c, "engine"), "the placement of the other client is freed")
    publish(c, "engine", 4)  # the version is superseded while the model sleeps
    model.wake()
    awake()
    model.close()


def lose(c: st.Client[Any], model: st.Model[Any]) -> None:
    """Loses the connection, and waits until the lease of the model is renewed."""
    session = c._session()
    session.fail(st.ConnectionLostError("lost"))
    eventually(lambda: model._lease.session not in (None, session), "the lease is renewed")
    assert not model.stale and model._lease.session is c._current


COMMANDS: dict[str, Callable[[st.Client[Any]], None]] = {
    "acquire": acquire,
    "from_gpu": from_gpu,
    "to": to,
    "follow": follow,
    "sleep": sleep,
}


def main() -> None:
    with st.connect(sys.argv[2], framework="numpy", reconnect=LIMIT) as client:
        COMMANDS[sys.argv[1]](client)
        gc.collect()
        cuda.wait_released()
    print("ok")


if __name__ == "__main__":
    main()
