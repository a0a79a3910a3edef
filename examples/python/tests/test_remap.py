"""A model's memory is replaced by another version's, and unmapped and mapped again, at the same addresses."""

from __future__ import annotations

import faulthandler
import os
import signal

import numpy as np
import pytest
from conftest import Owner, eventually

import sharedtensor as st
from sharedtensor import memory


def address(array: np.ndarray) -> int:  # type: ignore[type-arg]
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]


def publish(c: st.Client[st.NumpyArray], value: float, name: str = "llm") -> int:
    return c.publish(name, {"w": np.full((300, 7), value, np.float32), "b": np.full(5, -value, np.float64)})


def inodes_of_memory() -> set[str]:
    with open("/proc/self/maps") as maps:
        return {line.split()[4] for line in maps if "memfd:sharedtensor" in line}


def test_arrays_show_the_newer_version(module_owner: Owner) -> None:
    with st.connect(module_owner.socket, framework="numpy", keep=0) as c:
        publish(c, 1)
        model = c.acquire("llm")
        w, b = model["w"], model["b"]
        places = address(w), address(b)
        former = model.mappings[0].inode()[1]
        version = publish(c, 2)
        newer = c.acquire("llm")
        model.remap(newer)
        assert (address(w), address(b)) == places and model["w"] is w
        assert np.all(w == 2) and np.all(b == -2)
        assert model.version == version
        assert "closed" in repr(newer)
        del newer
        assert str(former) not in inodes_of_memory(), "the former version is still mapped"

        def leases() -> list[int]:
            return [sum(h.leases for h in v.holders) for v in c.inspect("llm").model.versions]

        eventually(lambda: sum(leases()) == 1, "the lease on the former version ends")
        # The remapped memory is passed by its new descriptor.
        assert model.mappings[0].inode() == c.acquire("llm").mappings[0].inode()


def test_the_lease_ends_with_the_last_array(module_owner: Owner) -> None:
    with st.connect(module_owner.socket, framework="numpy") as c:
        publish(c, 1, "leases")
        model = c.acquire("leases")
        version = publish(c, 2, "leases")
        model.remap(c.acquire("leases"))
        array = model["w"]
        model.close()
        del model

        def leases() -> int:
            return sum(h.leases for v in c.inspect("leases").model.versions if v.version == version for h in v.holders)

        assert leases() == 1 and np.all(array == 2)
        del array
        eventually(lambda: leases() == 0, "the lease ends")


@pytest.mark.parametrize("other", ["shape", "type", "names", "order"])
def test_another_layout_is_refused(module_owner: Owner, other: str) -> None:
    with st.connect(module_owner.socket, framework="numpy") as c:
        publish(c, 1, other)
        model = c.acquire(other)
        w, b = np.ones((300, 7), np.float32), np.ones(5)
        tensors = {
            "shape": {"w": np.ones((7, 300), np.float32), "b": b},
            "type": {"w": w.view(np.int32), "b": b},
            "names": {"w": w, "c": b},
            "order": {"b": b, "w": w},
        }[other]
        c.publish(other, tensors)
        with pytest.raises(st.IncompatibleError, match="another layout"):
            model.remap(c.acquire(other))
        assert model.version == 1 and np.all(model["w"] == 1)


def test_memory_is_unmapped_and_mapped_again(module_owner: Owner) -> None:
    with st.connect(module_owner.socket, framework="numpy") as c:
        publish(c, 3, "sleep")
        model = c.acquire("sleep")
        w = model["w"]
        model.unmap()
        pid = os.fork()
        if pid == 0:
            faulthandler.disable()
            os._exit(int(w[0, 0]))
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGSEGV
        model.map()
        assert np.all(w == 3)


def test_mapping_what_is_mapped_keeps_writes(module_owner: Owner) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: acquired arrays of numpy are read-only")
    with st.connect(module_owner.socket, framework="torch") as c:
        c.publish("writes", {"w": torch.ones(5000)})
        model = c.acquire("writes")
        model["w"][7] = 9.0
        model.map()
        assert float(model["w"][7]) == 9 and float(model["w"][8]) == 1
        model.unmap()
        newer = c.acquire("writes")
        with pytest.raises(st.IncompatibleError, match="not mapped"):
            model.remap(newer)
        model.map()
        assert float(model["w"][7]) == 1, "unmapping loses what this process wrote"


def test_pages_that_a_process_has_changed_are_found_in_two_ways() -> None:
    """By one system call of newer kernels, and by reading the table of pages."""
    slab = memory.Slab(16 * memory.PAGE)
    slab.clear(0, slab.nbytes)
    memory._pagemap.changed(0, 1)
    scans = memory._pagemap._scans
    for written in ([], [0], [15], [3, 9]):
        mapping = memory.Mapping(os.dup(slab.fd), 0, slab.nbytes, writable=False, private=True)
        pages = np.frombuffer(mapping.buffer(), np.uint8).reshape(16, memory.PAGE)
        assert not pages[::2].any()  # these are there, and the file's
        for page in written:
            pages[page, 7] = 1
        first = mapping.address // memory.PAGE
        for begin in range(16):
            for end in range(begin + 1, 17):
                expected = any(begin <= page < end for page in written)
                assert memory._pagemap._read(first + begin, first + end) == expected
                assert not scans or memory._pagemap._scan(first + begin, first + end) == expected
