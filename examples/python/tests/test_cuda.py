"""GPU memory through cuda-bindings. The owner is the Go command. Both use the stand-in for the driver, or a real GPU
with GPU_TEST=require."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, Owner

import sharedtensor as st
from sharedtensor import safetensors_file

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed: nothing of CUDA is tested")


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which programs find the stand-in for libcuda. Empty for a real GPU."""
    if os.environ.get("GPU_TEST") == "require":
        return {}
    if shutil.which("cc") is None:
        pytest.skip("the stand-in for libcuda needs a C compiler")
    folder = tmp_path_factory.mktemp("fake")
    flags = ["-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", "-Wl,-soname,libcuda.so.1"]
    sources = sorted(map(str, (ROOT / "driver/cuda/cudatest/libcuda").glob("*.c")))
    subprocess.run(["cc", *flags, *sources, "-o", str(folder / "libcuda.so.1"), "-lm"], check=True)
    return {"LD_LIBRARY_PATH": str(folder), "FAKECUDA_DEVICES": "1"}


@pytest.fixture
def gpu_owner(make_owner: Callable[..., Owner], fake: dict[str, str], folder: Path) -> tuple[Owner, Path]:
    file = folder / "model.safetensors"
    tensors = {
        "a": np.arange(700, dtype=np.float32).reshape(7, 100),
        "b": np.ones((3, 5), np.float32),
        "none": np.zeros((0, 3), np.float32),
    }
    safetensors_file.write(file, st.state_dict(tensors, framework="numpy"))
    return make_owner("serve", "--device", "cuda:0", f"model={file}", env=fake), file


def run(command: str, file: Path, owner: Owner, fake: dict[str, str]) -> None:
    program = Path(__file__).with_name("cuda_program.py")
    env = {**os.environ, **fake, "PYTHONPATH": str(Path(st.__file__).parent.parent)}
    arguments = [sys.executable, str(program), command, str(file), owner.socket]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0 and done.stdout.strip() == "ok", done.stdout + done.stderr


def test_gpu_models_are_shared_in_both_directions(gpu_owner: tuple[Owner, Path], fake: dict[str, str]) -> None:
    run("all", gpu_owner[1], gpu_owner[0], fake)


def test_calls_with_tensors_of_a_gpu(make_owner: Callable[..., Owner], fake: dict[str, str], folder: Path) -> None:
    run("call", folder, make_owner("gpuowner", env=fake), fake)


def test_workers_with_tensors_of_a_gpu(make_owner: Callable[..., Owner], fake: dict[str, str], folder: Path) -> None:
    run("work", folder, make_owner("serve", "--device", "cuda:0", "--offers", env=fake), fake)


def test_layout_of_the_dlpack_records() -> None:
    from sharedtensor.capsules import _Managed, _Tensor, _Versioned

    pointer = struct.calcsize("P")
    assert _Tensor.ndim.offset == pointer + 8 and _Tensor.shape.offset == pointer + 16
    assert _Managed.deleter.offset == _Tensor.byte_offset.offset + 8 + pointer
    assert _Versioned.tensor.offset == 8 + 2 * pointer + 8


CONTEXTS = """
import sys
import numpy as np
import sharedtensor as st
from sharedtensor import cuda
from sharedtensor.cuda_array import CudaArray
from sharedtensor.manifest import TensorSpec

def active():
    return [bool(cuda.call("cuDevicePrimaryCtxGetState", cuda.call("cuDeviceGet", i))[1]) for i in range(3)]

assert active() == [False] * 3
last = cuda._uuid(cuda.call("cuDeviceGet", 2))
gpu = cuda.device_by_uuid(last)
assert gpu.ordinal == 2 and active() == [False, False, True], active()

# Writes of a stream that does not wait for the default stream follow the zeroing.
calls = []
call = cuda.call
cuda.call = lambda name, *arguments: (calls.append(name), call(name, *arguments))[1]
memory = cuda.SharedMemory.allocate(gpu, 4096)
assert calls.index("cuCtxSynchronize") > calls.index("cuMemsetD8"), calls
cuda.call = call
with gpu.current():
    side = call("cuStreamCreate", 1)  # non-blocking
    call("cuMemsetD8Async", memory.address, 9, 4096, side)
    call("cuStreamSynchronize", side)
    call("cuCtxSynchronize")
    written = np.zeros(4096, dtype=np.uint8)
    call("cuMemcpyDtoH", written.ctypes.data, memory.address, 4096)
    call("cuStreamDestroy", side)
assert (written == 9).all(), written

values = np.arange(6, dtype=np.float32)
with gpu.current():
    call("cuMemcpyHtoD", memory.address, values.ctypes.data, values.nbytes)
array = CudaArray(memory, TensorSpec("", st.DType.FLOAT32, (6,), (1,), 0, 0))
for entry in (lambda: st.state_dict({"w": array}), lambda: st.from_array(array)):
    try:
        entry()
    except st.CapabilityError as err:
        assert "cuda:2" in str(err), err
    else:
        raise AssertionError("the CPU read addresses of a GPU")
if len(sys.argv) > 1:
    with st.connect(sys.argv[1], framework="numpy") as client:
        client.publish("digests", {"w": array}, digests=True)
        found = client.acquire("digests")
        assert all(spec.digest for spec in found.specs)
        found.verify()
print("ok")
"""


def test_an_import_makes_one_context_and_fresh_memory_is_zero(
    make_owner: Callable[..., Owner], fake: dict[str, str]
) -> None:
    if not fake:
        pytest.skip("it needs three GPUs: only on the stand-in")
    three = {**fake, "FAKECUDA_DEVICES": "3"}
    owner = make_owner("serve", "--device", "cuda:2", env=three)
    env = {**os.environ, **three, "PYTHONPATH": str(Path(st.__file__).parent.parent)}
    command = [sys.executable, "-c", CONTEXTS, owner.socket]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0 and done.stdout.strip() == "ok", done.stdout + done.stderr
