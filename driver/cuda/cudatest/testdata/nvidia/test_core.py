"""cuda.core: memory, copies, IPC, streams, events, kernels, graphs, multiprocessors, checkpoints."""

from __future__ import annotations

import ctypes
import multiprocessing
import os

import numpy as np
import pytest
from conftest import PTX

core = pytest.importorskip("cuda.core", reason="cuda-core is not installed")


@pytest.fixture
def device():
    dev = core.Device(0)
    dev.set_current()
    return dev


@pytest.fixture
def stream(device):
    s = device.create_stream()
    yield s
    s.sync()
    s.close()


def words(buffer, stream, count: int) -> list[int]:
    """Copies 32-bit words to the host."""
    host = core.LegacyPinnedMemoryResource().allocate(buffer.size)
    buffer.copy_to(host, stream=stream)
    stream.sync()
    values = np.from_dlpack(host).view(np.uint8)[: 4 * count].copy().view(np.uint32).tolist()
    host.close()
    return values


def test_properties(device) -> None:
    properties = device.properties
    for name in dir(properties):
        if not name.startswith("_"):
            getattr(properties, name)
    assert device.compute_capability == (9, 0)


def test_copies_and_fills(device, stream, leaks) -> None:
    a, b = device.allocate(256, stream=stream), device.allocate(256, stream=stream)
    a.fill(b"\1\2\3\4", stream=stream)
    a.copy_to(b, stream=stream)
    assert words(b, stream, 2) == [0x04030201] * 2
    a.close(stream)
    b.close(stream)
    stream.sync()


@pytest.mark.parametrize("kind", ["Pinned", "Managed"])
def test_pools_that_the_host_can_access(device, stream, leaks, kind: str) -> None:
    resource = getattr(core, kind + "MemoryResource")(getattr(core, kind + "MemoryResourceOptions")())
    buffer = resource.allocate(64, stream=stream)
    buffer.fill(7, stream=stream)
    stream.sync()
    assert ctypes.string_at(int(buffer.handle), 4) == b"\7" * 4
    buffer.close(stream)
    stream.sync()
    resource.close()


def test_virtual_memory(device, stream) -> None:
    resource = core.VirtualMemoryResource(device)
    buffer = resource.allocate(2 << 20)
    buffer.fill(3, stream=stream)
    assert words(buffer, stream, 1) == [0x03030303]
    buffer.close()


def test_events_order_streams(device, stream) -> None:
    other = device.create_stream(options=core.StreamOptions(nonblocking=False, priority=-1))
    begin = stream.record(options=core.EventOptions(timing_enabled=True))
    other.wait(begin)
    end = other.record(options=core.EventOptions(timing_enabled=True))
    end.sync()
    assert end.is_done and end - begin >= 0
    other.wait(stream)
    other.sync()
    other.close()
    for default in (device.default_stream, core.LEGACY_DEFAULT_STREAM, core.PER_THREAD_DEFAULT_STREAM):
        default.sync()


def test_kernels(device, stream) -> None:
    kernel = core.ObjectCode.from_ptx(PTX).get_kernel("fill")
    assert kernel.num_arguments == 3 and [p.size for p in kernel.arguments_info] == [8, 4, 4]
    assert kernel.occupancy.max_active_blocks_per_multiprocessor(128, dynamic_shared_memory_size=0) == 16
    buffer = device.allocate(256, stream=stream)
    for value, config in enumerate(
        [
            core.LaunchConfig(grid=1, block=4),
            core.LaunchConfig(grid=2, block=4, cluster=2),
            core.LaunchConfig(grid=1, block=4, is_cooperative=True),
        ]
    ):
        core.launch(stream, config, kernel, buffer, ctypes.c_uint32(value + 1), ctypes.c_uint32(4))
        assert words(buffer, stream, 4) == [value + 1] * 4
    buffer.close(stream)


def test_graphs(device, stream) -> None:
    module = core.ObjectCode.from_ptx(PTX)
    fill, decide = module.get_kernel("fill"), module.get_kernel("setcondition")
    buffer = device.allocate(64, stream=stream)
    buffer.fill(0, stream=stream)
    stream.sync()
    one = core.LaunchConfig(grid=1, block=1)

    def put(builder, index: int, value: int) -> None:
        core.launch(builder, one, fill, int(buffer.handle) + 4 * index, ctypes.c_uint32(value), ctypes.c_uint32(1))

    builder = device.create_graph_builder().begin_building()
    put(builder, 0, 5)
    left, right = builder.split(2)
    put(left, 1, 6)
    put(right, 2, 7)
    builder = type(builder).join(left, right)
    condition = builder.create_condition() if hasattr(builder, "create_condition") else builder.create_conditional_handle()
    core.launch(builder, one, decide, condition, ctypes.c_uint32(1))
    body = (builder.if_then if hasattr(builder, "if_then") else builder.if_cond)(condition)
    body.begin_building()
    put(body, 3, 8)
    body.end_building()
    graph = builder.end_building().complete()
    graph.upload(stream)
    for _ in range(2):
        graph.launch(stream)
    assert words(buffer, stream, 4) == [5, 6, 7, 8]
    graph.close()
    buffer.close(stream)


def write_through_ipc(queue, done) -> None:
    """Runs in another process: writes to a buffer of this one."""
    dev = core.Device(0)
    dev.set_current()
    s = dev.create_stream()
    buffer = queue.get(timeout=60)
    assert words(buffer, s, 1) == [0x01010101]
    buffer.fill(2, stream=s)
    s.sync()
    buffer.close(s)
    s.sync()
    done.set()


def test_ipc(device, stream) -> None:
    context = multiprocessing.get_context("spawn")
    resource = core.DeviceMemoryResource(device, core.DeviceMemoryResourceOptions(ipc_enabled=True, max_size=1 << 24))
    buffer = resource.allocate(4096, stream=stream)
    buffer.fill(1, stream=stream)
    stream.sync()
    queue, done = context.Queue(), context.Event()
    process = context.Process(target=write_through_ipc, args=(queue, done))
    process.start()
    queue.put(buffer)
    process.join(60)
    assert done.is_set() and process.exitcode == 0
    assert words(buffer, stream, 1) == [0x02020202]
    buffer.close(stream)
    stream.sync()


def test_multiprocessors_and_checkpoint(device) -> None:
    sm = device.resources.sm
    groups, _rest = sm.split(core.SMResourceOptions(count=(4, 4)))
    assert [g.sm_count for g in groups] == [4, 4]
    from cuda.core import checkpoint

    assert checkpoint.Process(os.getpid()).state == "running"
