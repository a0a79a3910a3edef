"""test_cuda.py runs this program. It acquires, publishes and calls with GPU memory."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import time

import numpy as np

import sharedtensor as st
import sharedtensor.safetensors_file
from sharedtensor import cuda, messages
from sharedtensor.capsules import _alive, _Versioned
from sharedtensor.cuda_array import CudaArray
from sharedtensor.manifest import TensorSpec, contiguous_strides


def live() -> int:
    gc.collect()
    cuda.wait_released()
    return len(os.listdir("/proc/self/fd"))


def gpu_array(values: np.ndarray, kind: str) -> CudaArray:
    """Copies an array to the GPU.

    :param kind: "shared" for memory of this package, "foreign" for cuMemAlloc, "private" for memory of cuMemCreate that
        cannot be shared, as torch's expandable segments.
    """
    gpu = cuda.device(0)
    if kind == "shared":
        memory: cuda.Memory = cuda.SharedMemory.allocate(gpu, values.nbytes)
    elif kind == "private":
        memory = private_memory(gpu, values.nbytes)
    else:
        with gpu.current():
            base = int(cuda.call("cuMemAlloc", max(values.nbytes, 1)))
        memory = cuda.Memory(gpu, base, values.nbytes, writable=True)
        memory.release_with([("cuMemFree", base)])
    with gpu.current():
        cuda.call("cuMemcpyHtoD", memory.address, values.ctypes.data, values.nbytes)
    spec = TensorSpec("", st.DType.of_numpy(values.dtype), values.shape, contiguous_strides(values.shape), 0, 0)
    return CudaArray(memory, spec)


def private_memory(gpu: cuda.Device, nbytes: int) -> cuda.Memory:
    properties = gpu.properties()
    properties.requestedHandleTypes = cuda.driver().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    size = -(-nbytes // gpu.granularity()) * gpu.granularity()
    with gpu.current():
        allocation = cuda.call("cuMemCreate", size, properties, 0)
        base = cuda.call("cuMemAddressReserve", size, 0, 0, 0)
        cuda.call("cuMemMap", base, size, 0, allocation, 0)
        cuda.call("cuMemSetAccess", base, size, [gpu.access(True)], 1)
    memory = cuda.Memory(gpu, int(base), nbytes, writable=True)
    memory.release_with([("cuMemUnmap", base, size), ("cuMemAddressFree", base, size), ("cuMemRelease", allocation)])
    return memory


def acquire(client: st.Client) -> None:
    w = client.acquire("model", framework="numpy")
    want, _ = st.safetensors_file.read(sys.argv[2])
    for name, d in want.items():
        array = w[name]
        assert isinstance(array, CudaArray) and array.shape == d.shape
        assert array.numpy().tobytes() == d.value.tobytes(), name
        interface = array.__cuda_array_interface__
        assert interface["typestr"] == "<f4" and interface["data"] == (array.address if array.spec.numel else 0, True)
    assert repr(array).endswith("on cuda:0>")
    dlpack(w[next(iter(want))])
    for choice in (["b"], ["a"], ["b", "none"]):
        part = client.acquire("model", tensors=choice, framework="numpy")
        assert sorted(part) == sorted(choice)
        assert all(part[name].numpy().tobytes() == want[name].value.tobytes() for name in choice), choice


def dlpack(array: CudaArray) -> None:
    capsule = array.__dlpack__(max_version=(1, 0))
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    record = ctypes.cast(pointer(capsule, b"dltensor_versioned"), ctypes.POINTER(_Versioned)).contents
    tensor = record.tensor
    assert (record.major, record.flags, tensor.device_type, tensor.device_id) == (1, 1, 2, 0)
    assert tensor.data == array.address and tuple(tensor.shape[: tensor.ndim]) == array.shape
    assert array.__dlpack_device__() == (2, 0) and len(_alive) == 1
    # With the device type of the host, numpy accepts the capsule and later releases it. The stand-in does not let numpy
    # read the bytes.
    tensor.device_type = 1
    capsules = [capsule]
    del capsule

    class Producer:
        def __dlpack__(self, **_: object) -> object:
            return capsules[0]

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    view = np.from_dlpack(Producer())
    assert view.__array_interface__["data"] == (array.address, True) and view.shape == array.shape
    del view
    capsules.clear()
    gc.collect()
    assert not _alive, "the consumer gave the memory back, and it is kept"
    unused = array.__dlpack__()
    assert len(_alive) == 1
    del unused
    assert not _alive, "a capsule that nobody took keeps the memory"


def publish(client: st.Client) -> None:
    x = np.arange(1000, dtype=np.float32).reshape(10, 100)
    on_gpu, foreign = gpu_array(x, "shared"), gpu_array(x * 2, "foreign")
    version = client.publish("from-python", {"x": on_gpu, "tied": on_gpu, "foreign": foreign})
    w = client.acquire("from-python", version, framework="numpy")
    assert w.tied() == [["x", "tied"]]
    assert np.array_equal(w["x"].numpy(), x) and np.array_equal(w["foreign"].numpy(), 2 * x)
    try:
        client.publish("from-python", {"x": on_gpu, "host": x})
    except st.CapabilityError as err:
        assert "no host memory" in str(err)
    else:
        raise AssertionError("an owner of a GPU took host memory")


def remap(client: st.Client) -> None:
    """Another version gets the addresses of the first, and memory is unmapped and mapped again."""
    x = np.arange(1000, dtype=np.float32)
    live()
    free = driver_free()
    client.publish("remap", {"x": gpu_array(x, "shared")})
    model = client.acquire("remap", framework="numpy")
    array, address = model["x"], model["x"].address
    for step in (2, 3):
        version = client.publish("remap", {"x": gpu_array(x * step, "shared")})
        model.remap(client.acquire("remap", framework="numpy"))
        assert model.version == version and array.address == address == model["x"].address
        assert np.array_equal(array.numpy(), x * step)
    mapped = driver_free()
    model.unmap()
    try:
        array.numpy()
    except st.CapabilityError:
        pass
    else:
        raise AssertionError("unmapped memory was read")
    model.map()
    model.map()
    assert np.array_equal(array.numpy(), x * 3)
    assert driver_free() >= mapped, "mapping allocates"  # the owner may have freed an earlier version meanwhile
    client.publish("remap", {"x": gpu_array(x[:10], "shared")})
    try:
        model.remap(client.acquire("remap", framework="numpy"))
    except st.IncompatibleError:
        pass
    else:
        raise AssertionError("another layout was mapped")
    client.withdraw("remap")
    model.close()
    del model, array
    live()
    until = time.monotonic() + 10
    while driver_free() < free and time.monotonic() < until:
        time.sleep(0.02)
    assert driver_free() >= free, "memory of the GPU is left"


def driver_free() -> int:
    """Returns the free bytes of the GPU."""
    with cuda.device(0).current():
        return int(cuda.call("cuMemGetInfo")[0])


def call(client: st.Client) -> None:
    """Arguments and results are GPU memory: of this package, of other libraries, and of the function."""
    x = np.arange(300, dtype=np.float32).reshape(3, 100)
    for kind in ("shared", "foreign", "private"):
        y = client.call("double", x=gpu_array(x, kind), framework="numpy")
        assert isinstance(y, CudaArray) and np.array_equal(y.numpy(), 2 * x), kind
    again = client.call("double", x=y, framework="numpy")
    assert np.array_equal(again.numpy(), 4 * x)
    try:
        client.call("double", x=x)
    except st.CapabilityError:
        pass
    else:
        raise AssertionError("a function of the GPU took host memory")


def work(client: st.Client) -> None:
    """A worker in another process gets GPU memory and returns it."""
    child = [sys.executable, __file__, "offer", "", sys.argv[3]]
    worker = subprocess.Popen(child, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    try:
        assert worker.stdout.readline() == "offered\n"
        x = np.arange(300, dtype=np.float32).reshape(3, 100)
        for kind in ("shared", "foreign", "private"):
            argument = gpu_array(x, kind)
            for result in ("shared", "foreign", "private"):
                y = client.call("copy", x=argument, kind=result, framework="numpy")
                assert isinstance(y, CudaArray) and np.array_equal(y.numpy(), x), (kind, result)
            y = client.call("same", x=argument, framework="numpy")
            assert np.array_equal(y.numpy(), x), kind
        empty = client.call("copy", x=gpu_array(x[:0], "shared"), kind="foreign", framework="numpy")
        assert empty.shape == (0, 100)
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()
    assert np.array_equal(y.numpy(), x), "a result goes with its worker"


def offer(client: st.Client) -> None:
    def copy(x: CudaArray, kind: str) -> CudaArray:
        return gpu_array(x.numpy(), kind)

    def same(x: CudaArray) -> CudaArray:
        return x

    with client.offer(copy=copy, same=same) as offered:
        print("offered", flush=True)
        offered.wait()


def refuse() -> None:
    array = gpu_array(np.ones(4, np.float32), "foreign")
    handle = cuda.ipc_handle(cuda.device(0), array.address, 16)
    handle.device = bytes(16)
    try:
        cuda.import_handle(handle, -1)
    except st.CapabilityError as err:
        assert "does not see" in str(err)
    else:
        raise AssertionError("memory of a device that is not here was imported")


def legacy() -> None:
    """Another process opens memory of cuMemAlloc with its 64-byte handle, as torch shares it, and reads it."""
    x = np.arange(512, dtype=np.float32) * 3
    memory = gpu_array(np.concatenate([np.zeros(128, np.float32), x]), "foreign").memory
    handle = cuda.ipc_handle(memory.gpu, memory.address + 512, x.nbytes)
    assert handle.offset == 512 and handle.kind == "cuda-ipc" and handle.file == -1
    child = [sys.executable, __file__, "open", "", handle.encode().hex()]
    done = subprocess.run(child, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(x.sum()), done.stdout + done.stderr
    del memory


def open_legacy(handle: messages.Handle) -> None:
    """Opens the memory twice, as for two tensors of one allocation, and prints the sum of its elements."""
    first, second = cuda.import_handle(handle, -1), cuda.import_handle(handle, -1)
    assert first.address == second.address and len(cuda.IpcMemory._open) == 1
    spec = TensorSpec("", st.DType.FLOAT32, (512,), (1,), 0, 0)
    total = CudaArray(first, spec).numpy().sum()
    exported, fd = first.export(0)
    assert fd == -1 and exported.blob == handle.blob and exported.offset == handle.offset
    del first
    assert CudaArray(second, spec).numpy().sum() == total, "closed while somebody has it"
    del second
    gc.collect()
    cuda.wait_released()
    assert not cuda.IpcMemory._open, "nobody has it, and it is open"
    handle.nbytes = 1 << 40
    try:
        cuda.import_handle(handle, -1)
    except st.ProtocolError:
        print(total)


if __name__ == "__main__":
    command = sys.argv[1]
    if command == "call":
        with st.connect(sys.argv[3]) as client:
            call(client)
            before = live()
            call(client)
            assert live() <= before, f"{live() - before} descriptors stay"
        print("ok")
        sys.exit()
    if command in ("work", "offer"):
        with st.connect(sys.argv[3], framework="numpy") as client:
            work(client) if command == "work" else offer(client)
        print("ok")
        sys.exit()
    if command == "open":
        open_legacy(messages.Handle.decode(bytes.fromhex(sys.argv[3])))
        sys.exit()
    with st.connect(sys.argv[3]) as client:
        acquire(client)
        before = live()
        acquire(client)
        publish(client)
        remap(client)
        refuse()
        legacy()
        assert live() <= before, f"{live() - before} descriptors stay"
    print("ok")
