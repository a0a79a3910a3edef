"""The order of copies of GPU tensors, with a recorder that replaces the driver and torch. A real GPU does not show that
a temporary was freed too early."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sharedtensor import cuda, layout
from sharedtensor.arrays import Described
from sharedtensor.dtypes import DType
from sharedtensor.errors import CapabilityError, ProtocolError
from sharedtensor.manifest import contiguous_strides


class Recorder:
    """Records steps in order."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []
        self.next = 1 << 30

    def call(self, name: str, *arguments: Any) -> None:
        self.steps.append((name, *arguments))

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        yield

    def named(self, name: str) -> list[int]:
        """Returns the position of the step with that name."""
        return [i for i, step in enumerate(self.steps) if step[0] == name]


class Tensor:
    """A torch tensor on a GPU."""

    def __init__(self, recorder: Recorder, address: int) -> None:
        self.recorder = recorder
        self.address = address

    def contiguous(self) -> Tensor:
        self.recorder.next += 1 << 20
        made = Tensor(self.recorder, self.recorder.next)
        self.recorder.steps.append(("contiguous", self.address, made.address))
        steps, address = self.recorder.steps, made.address
        weakref.finalize(made, lambda: steps.append(("free", address))).atexit = False
        return made

    def data_ptr(self) -> int:
        return self.address


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(cuda, "call", made.call)
    monkeypatch.setattr(cuda, "loaded_torch", lambda: SimpleNamespace(Tensor=Tensor))

    def allocate(gpu: Any, nbytes: int) -> Any:
        made.steps.append(("allocate", nbytes))
        return SimpleNamespace(address=1 << 40, nbytes=nbytes)

    monkeypatch.setattr(cuda.SharedMemory, "allocate", allocate)
    return made


def described(recorder: Recorder, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Described:
    return Described(Tensor(recorder, address), DType.FLOAT32, shape, strides, address, "cuda:0")


def test_copies_on_a_gpu_wait_for_the_tensors_and_keep_temporaries(recorder: Recorder) -> None:
    tensors = {
        "plain": described(recorder, 0x10000, (8, 8), (8, 1)),
        "columns": described(recorder, 0x20000, (8, 4), (12, 1)),
        "rows": described(recorder, 0x30000, (4, 8), (16, 1)),
        "transposed": described(recorder, 0x40000, (8, 8), (1, 8)),
    }
    plan = layout.plan(tensors, strided=False)
    cuda.fill(plan, recorder)  # type: ignore[arg-type]
    gc.collect()
    made, copied, waited, freed = map(recorder.named, ("contiguous", "cuMemcpyDtoD", "cuCtxSynchronize", "free"))
    assert len(made) == 2 and len(copied) == 4 and len(freed) == 2 and len(waited) == 2, recorder.steps
    assert max(made) < waited[0] < min(copied), "a copy may begin before what it reads is complete"
    assert max(copied) < waited[1] < min(freed), "a temporary is freed before the copy of it has ended"
    sources = {recorder.steps[i][2] for i in copied}
    assert sources == {0x10000, 0x40000} | {recorder.steps[i][2] for i in made}


def test_gpu_copies_omit_bytes_between_views(recorder: Recorder) -> None:
    """Only the elements of columns of a fused matrix are copied, in row-major order."""
    fused, shape = 0x100000, (64, 16)
    tensors = {
        "q": described(recorder, fused, shape, (48, 1)),
        "k": described(recorder, fused + 64, shape, (48, 1)),
        "over": described(recorder, fused + 32, shape, (48, 1)),
    }
    plan = layout.plan(tensors, strided=False)
    cuda.fill(plan, recorder)  # type: ignore[arg-type]
    assert [recorder.steps[i][3] for i in recorder.named("cuMemcpyDtoD")] == [4096] * 3
    assert all(spec.strides == contiguous_strides(shape) for spec in plan.specs)


def test_tied_tensors_of_a_gpu_stay_tied(recorder: Recorder) -> None:
    tensors = {
        "whole": described(recorder, 0x10000, (8, 8), (8, 1)),
        "column": described(recorder, 0x10004, (8, 1), (8, 1)),
        "again": described(recorder, 0x10000, (64,), (1,)),
    }
    plan = layout.plan(tensors, strided=False)
    cuda.fill(plan, recorder)  # type: ignore[arg-type]
    assert len(recorder.named("cuMemcpyDtoD")) == 1 and not recorder.named("contiguous")
    assert [spec.offset for spec in plan.specs] == [0, 4, 0]


def test_refused_wait_defers_the_release(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is kept if the driver refuses to wait during a capture, because kernels may still use it."""
    codes = [900, 906, 0]
    freed: list[int] = []
    made = SimpleNamespace(cuCtxSynchronize=lambda: (codes.pop(0),), cuMemFree=freed.append)
    monkeypatch.setattr(cuda, "driver", lambda: made)
    for done in (False, False, True):
        assert not freed
        assert cuda._release(recorder, [("cuMemFree", 7)]) is done  # type: ignore[arg-type]
    assert freed == [7]


@pytest.mark.parametrize("fault", ["cuMemGetAddressRange", "too small"])
def test_a_handle_of_another_process_is_closed_after_a_failure(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """The memory of another process stays allocated while a handle of it is open."""
    opened: list[int] = []
    buffer = ctypes.create_string_buffer(cuda.IPC_BYTES)

    def call(name: str, *arguments: Any) -> Any:
        if name == "cuIpcOpenMemHandle":
            opened.append(1 << 30)
            return 1 << 30
        if name == "cuMemGetAddressRange":
            if fault == name:
                raise CapabilityError("the range is not known")
            return 1 << 30, 4096
        if name == "cuIpcCloseMemHandle":
            opened.remove(arguments[0])
        return None

    monkeypatch.setattr(cuda, "call", call)
    names = SimpleNamespace(
        CUipcMemHandle=lambda: SimpleNamespace(getPtr=lambda: ctypes.addressof(buffer)),
        CUipcMem_flags=SimpleNamespace(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS=1),
    )
    monkeypatch.setattr(cuda, "driver", lambda: names)
    monkeypatch.setattr(cuda, "_release", lambda gpu, steps: [call(*step) for step in steps] != [])
    releases = cuda._Releases()
    monkeypatch.setattr(cuda, "_releases", releases)
    gpu: Any = SimpleNamespace(current=contextlib.nullcontext, uuid=bytes(16), ordinal=0)
    blob = fault.encode().ljust(cuda.IPC_BYTES, b"\0")
    with pytest.raises((CapabilityError, ProtocolError)):
        cuda.IpcMemory(gpu, blob, 4000, 200)
    gc.collect()
    cuda.wait_released()
    releases.put(None)  # ends its thread
    assert not opened
    assert blob not in cuda.IpcMemory._open
