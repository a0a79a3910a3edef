"""Digests that the owner computes in the background."""

from __future__ import annotations

import asyncio
import hashlib

import numpy as np
import pytest
from conftest import Owner

import sharedtensor as st


def test_the_owner_computes_digests(client: st.Client) -> None:
    weights = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.float16([1, 2])}
    version = client.publish("digested", weights, owner_digests=True)
    want = hashlib.sha256(
        b"1:a float16 [2] "
        + hashlib.sha256(weights["a"].tobytes()).digest()
        + b"1:b float32 [2 3] "
        + hashlib.sha256(weights["b"].tobytes()).digest()
    ).digest()
    assert client.digest("digested", version, timeout=60) == want
    (model,) = [m for m in client.list() if m.name == "digested"]
    assert (model.versions[0].digest_state, model.versions[0].digest) == (2, want)


def test_digests_that_were_not_requested(client: st.Client) -> None:
    with pytest.raises(st.NotFoundError, match="without digests"):
        client.digest("base")
    with pytest.raises(st.NotFoundError):
        client.digest("no such name")


def test_digests_with_asyncio(module_owner: Owner) -> None:
    async def main() -> None:
        async with await st.aio.connect(module_owner.socket, framework="numpy") as client:
            await client.publish("digested later", {"x": np.zeros(3, np.float32)}, owner_digests=True)
            assert len(await client.digest("digested later", timeout=60)) == 32

    asyncio.run(main())
