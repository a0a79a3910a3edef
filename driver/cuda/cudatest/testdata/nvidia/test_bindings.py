"""cuda.bindings.driver, as frameworks such as PyTorch use the driver: a caching allocator with segments that grow, handles of
parts of segments, side streams, captured graphs, and default streams of threads."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading

import pytest

driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")


def ok(result):
    code, *values = result
    assert code == driver.CUresult.CUDA_SUCCESS, code
    return values[0] if len(values) == 1 else tuple(values)


@pytest.fixture(scope="module", autouse=True)
def context():
    ok(driver.cuInit(0))
    dev = ok(driver.cuDeviceGet(0))
    ctx = ok(driver.cuDevicePrimaryCtxRetain(dev))
    ok(driver.cuCtxSetCurrent(ctx))
    yield ctx
    ok(driver.cuDevicePrimaryCtxRelease(dev))


def read(ptr, size: int) -> bytes:
    out = bytearray(size)
    ok(driver.cuMemcpyDtoH(out, ptr, size))
    return bytes(out)


class Segment:
    """An expandable segment, like that of PyTorch's allocator: reserved addresses into which blocks are mapped as it grows."""

    def __init__(self, size: int) -> None:
        self.prop = driver.CUmemAllocationProp()
        self.prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self.prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self.prop.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.block = ok(driver.cuMemGetAllocationGranularity(self.prop, minimum))
        self.size = size * self.block
        self.base = ok(driver.cuMemAddressReserve(self.size, 0, 0, 0))
        self.handles: list = []

    def grow(self) -> int:
        offset = len(self.handles) * self.block
        handle = ok(driver.cuMemCreate(self.block, self.prop, 0))
        ok(driver.cuMemMap(int(self.base) + offset, self.block, 0, handle, 0))
        access = driver.CUmemAccessDesc()
        access.location = self.prop.location
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        ok(driver.cuMemSetAccess(int(self.base) + offset, self.block, [access], 1))
        self.handles.append(handle)
        return int(self.base) + offset

    def close(self) -> None:
        for i, handle in enumerate(self.handles):
            ok(driver.cuMemUnmap(int(self.base) + i * self.block, self.block))
            ok(driver.cuMemRelease(handle))
        ok(driver.cuMemAddressFree(self.base, self.size))


def test_expandable_segments(leaks) -> None:
    segment = Segment(3)
    first, second = segment.grow(), segment.grow()
    ok(driver.cuMemsetD8(first + segment.block - 8, 5, 16))  # across both blocks
    assert read(second, 9) == b"\5" * 8 + read(second + 8, 1)
    assert driver.cuMemsetD8(second + segment.block - 8, 5, 16)[0] == driver.CUresult.CUDA_ERROR_INVALID_VALUE
    fd = ok(driver.cuMemExportToShareableHandle(segment.handles[0], driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
    handle = ok(driver.cuMemImportFromShareableHandle(int(fd), driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
    os.close(int(fd))
    ok(driver.cuMemRelease(handle))
    segment.close()


OPENER = """
import ctypes
import sys
from cuda.bindings import driver
ok = lambda r: (r[0] == 0 or sys.exit(str(r[0]))) and (r[1] if len(r) > 1 else None)
ok(driver.cuInit(0))
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
handle = driver.CUipcMemHandle()
ctypes.memmove(handle.getPtr(), bytes.fromhex(sys.argv[1]), 64)
base = ok(driver.cuIpcOpenMemHandle(handle, 1))
ok(driver.cuMemsetD8(int(base) + int(sys.argv[2]), 9, 4))
ok(driver.cuCtxSynchronize())
ok(driver.cuIpcCloseMemHandle(base))
"""


def test_a_part_of_a_segment_is_sent_to_another_process(leaks) -> None:
    segment = ok(driver.cuMemAlloc(1 << 20))
    ok(driver.cuMemsetD8(segment, 0, 1 << 20))
    tensor = int(segment) + 4096
    base, _ = ok(driver.cuMemGetAddressRange(tensor))
    handle = ok(driver.cuIpcGetMemHandle(tensor))
    command = [sys.executable, "-c", OPENER, ctypes.string_at(handle.getPtr(), 64).hex(), str(tensor - int(base))]
    subprocess.run(command, check=True, timeout=60)
    assert read(tensor, 4) == b"\t" * 4 and read(segment, 4) == b"\0" * 4
    ok(driver.cuMemFree(segment))


def test_a_block_is_reused_after_an_event(leaks) -> None:
    """The allocator reuses a block when the event of the side stream that used it is done."""
    side = ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    event = ok(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    block = ok(driver.cuMemAlloc(512))
    ok(driver.cuMemsetD8Async(block, 1, 512, side))
    ok(driver.cuEventRecord(event, side))
    assert driver.cuEventQuery(event)[0] == driver.CUresult.CUDA_ERROR_NOT_READY
    ok(driver.cuEventSynchronize(event))
    assert driver.cuEventQuery(event)[0] == driver.CUresult.CUDA_SUCCESS
    ok(driver.cuMemFree(block))
    ok(driver.cuEventDestroy(event))
    ok(driver.cuStreamDestroy(side))


def test_a_capture_refuses_allocations_of_its_thread(leaks) -> None:
    stream = ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    block = ok(driver.cuMemAlloc(512))
    ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    ok(driver.cuMemsetD8Async(block, 1, 512, stream))
    ok(driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    other = ok(driver.cuMemAlloc(512))  # as the allocator of PyTorch does for its private pools
    ok(driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    status, _id, graph, *_rest = ok(driver.cuStreamGetCaptureInfo(stream))
    assert status == driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE and int(graph)
    graph = ok(driver.cuStreamEndCapture(stream))
    executable = ok(driver.cuGraphInstantiate(graph, 0))
    ok(driver.cuGraphLaunch(executable, stream))
    ok(driver.cuStreamSynchronize(stream))
    assert read(block, 2) == b"\1\1"
    ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    assert driver.cuMemAlloc(512)[0] == driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    assert driver.cuStreamEndCapture(stream)[0] == driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    for call, value in (
        (driver.cuGraphExecDestroy, executable),
        (driver.cuGraphDestroy, graph),
        (driver.cuMemFree, block),
        (driver.cuMemFree, other),
        (driver.cuStreamDestroy, stream),
    ):
        ok(call(value))


def test_threads_have_their_own_default_streams(context, leaks) -> None:
    """Work in the default stream of one thread does not wait for that of another."""
    block = ok(driver.cuMemAlloc(16))
    ok(driver.cuMemsetD8(block, 0, 16))
    mine = driver.CUstream(2)  # CU_STREAM_PER_THREAD
    ok(driver.cuStreamWaitValue32(mine, block, 1, driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ))

    def release() -> None:
        ok(driver.cuCtxSetCurrent(context))
        ok(driver.cuStreamWriteValue32(mine, block, 1, 0))
        ok(driver.cuStreamSynchronize(mine))

    thread = threading.Thread(target=release)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    ok(driver.cuStreamSynchronize(mine))
    ok(driver.cuMemFree(block))


def test_managed_memory(leaks) -> None:
    block = ok(driver.cuMemAllocManaged(4096, driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL))
    ctypes.memset(int(block), 6, 4)
    assert read(block, 4) == b"\6" * 4
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    ok(driver.cuMemAdvise(block, 4096, driver.CUmem_advise.CU_MEM_ADVISE_SET_PREFERRED_LOCATION, location))
    ok(driver.cuMemPrefetchAsync(block, 4096, location, 0, 0))
    ok(driver.cuCtxSynchronize())
    ok(driver.cuMemFree(block))
