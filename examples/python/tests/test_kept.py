"""Memory of arguments that the server keeps mapped: calls name it without a descriptor."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import Owner

import sharedtensor as st
from sharedtensor import memory
from sharedtensor.kept import MAX_KNOWN, Kept
from sharedtensor.values import Outgoing


def used(c: st.Client[Any]) -> int:
    """Returns the mappings that the server keeps, for the client that has the most."""
    return next(limit.most for limit in c.info().raw.limits if limit.name == "kept_mappings")


def shared(n: int = 8) -> np.ndarray[Any, Any]:
    x = st.empty((n,), framework="numpy")
    x[:] = np.arange(n)
    return x


def descriptors_of(c: st.Client[Any], x: Any) -> int:
    """Returns the descriptors that a call with an argument would send."""
    session = c._session()
    out = Outgoing({"x": x}, session, c._pool.arguments, kept=session.kept)
    try:
        return len(out.files)
    finally:
        out.close()


def test_memory_that_is_passed_again_is_named_without_a_descriptor(module_owner: Owner) -> None:
    with st.connect(module_owner.socket, framework="numpy") as c:
        x = shared()
        for i in range(6):
            x[0] = i  # the same memory with other values
            assert np.array_equal(c.call("transform", x=x, scale=2.0), x * 2)
        assert used(c) == 1
        assert descriptors_of(c, x) == 0
        assert descriptors_of(c, shared()) == 1
        assert np.array_equal(c.call("transform", x=x[2:5], scale=3.0), x[2:5] * 3), "a view is the same memory"


def test_memory_that_the_server_no_longer_keeps_is_sent_again(module_owner: Owner) -> None:
    def forget(c: st.Client[Any], x: Any) -> None:
        """Makes the client believe that the server keeps memory that it was never sent."""
        kept = c._session().kept
        assert kept is not None
        mapping = memory.find(x.ctypes.data, x.nbytes)
        assert mapping is not None
        mapping.number = next(memory._numbers)
        kept.use(mapping.number)
        kept.use(mapping.number)
        session = c._session()
        out = Outgoing({"x": x}, session, c._pool.arguments, kept=kept)
        out.close()
        kept.answered(out.numbered)

    async def asynchronous(c: st.Client[Any], x: Any) -> Any:
        return await st.aio.Client(c).call("transform", x=x, scale=2.0)

    with st.connect(module_owner.socket, framework="numpy") as c:
        x = shared()
        forget(c, x)
        assert descriptors_of(c, x) == 0
        assert np.array_equal(c.call("transform", x=x, scale=2.0), x * 2)
        forget(c, x)
        assert np.array_equal(asyncio.run(asynchronous(c, x)), x * 2)


@pytest.mark.parametrize("make", [lambda: np.arange(4, dtype=np.float32), lambda: shared(4)])
def test_memory_of_other_sizes_is_never_taken_for_kept_memory(module_owner: Owner, make: Callable[[], Any]) -> None:
    """Memory that was freed, and memory of later arrays at the same address, have different numbers."""
    with st.connect(module_owner.socket, framework="numpy") as c:
        for size in range(1, 40):
            x = make() if size % 3 == 0 else shared(size * 100)
            for scale in (1.0, 2.0, 3.0):
                assert np.array_equal(c.call("transform", x=x, scale=scale), x * scale)
            del x


def test_the_pool_of_ordinary_arguments_is_not_kept(module_owner: Owner) -> None:
    """A slab that the server kept could not be reused."""
    with st.connect(module_owner.socket, framework="numpy") as c:
        x = np.arange(1000, dtype=np.float32)
        for _ in range(10):
            c.call("transform", x=x, scale=2.0)
        assert c.stats().arguments.made <= 2


def test_a_writable_argument_is_not_kept(module_owner: Owner) -> None:
    with st.connect(module_owner.socket, framework="numpy") as c:
        x = shared()
        session = c._session()
        for _ in range(4):
            assert c.call("transform", x=x, scale=1.0, writable=True) is not None
        assert session.kept is not None
        assert not session.kept._known


def test_a_client_knows_a_limited_number_of_mappings() -> None:
    kept = Kept()
    for number in range(1000):
        assert kept.use(number) == (False, None, True)
        assert kept.use(number) == (True, None, False)
    assert len(kept._known) == MAX_KNOWN
    assert kept.use(0) == (False, None, True)


def test_memory_that_is_missed_twice_is_sent_in_full() -> None:
    kept = Kept()
    kept.use(1)
    for _ in range(2):
        assert kept.use(1)[0]
        kept.answered({1: b"handle"})
        assert kept.use(1)[:2] == (True, b"handle")
        assert kept.missed({1: b"handle"})
        assert not kept.missed({1: b"handle"}), "the second answer is final"
    assert kept.use(1) == (False, None, True)


def test_a_mapping_whose_memory_is_replaced_has_another_number() -> None:
    first, second = memory.Slab(4096), memory.Slab(4096)
    a = memory.Mapping(os.dup(first.fd), 0, 4096, writable=False, private=True)
    b = memory.Mapping(os.dup(second.fd), 0, 4096, writable=False, private=True)
    number, inode = a.number, a.inode()
    a.replace(b)
    assert a.number != number
    assert a.inode() == second.inode() != inode
    number = second.number
    second.reuse(4000)
    assert second.number != number


def test_a_result_in_the_memory_of_an_argument_has_no_descriptor(make_owner: Any) -> None:
    """The owner knows that memory by its name."""
    owner = make_owner("serve", "--offers")
    with st.connect(owner.socket, framework="numpy") as worker, st.connect(owner.socket, framework="numpy") as c:
        with worker.offer(first=lambda x: x, both=lambda x: {"a": x[1:], "b": np.asarray(x) + 1}):
            x = shared()
            for i in range(5):
                x[0] = i
                assert np.array_equal(c.call("first", x=x), x)
                both = c.call("both", x=x)
                assert np.array_equal(both["a"], x[1:])
                assert np.array_equal(both["b"], x + 1)
    gc.collect()
