"""Clients of NATS at a gateway with a policy: bins and training runs with scopes, and a quota of requests."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Gateway

import sharedtensor as st

pytest.importorskip("nats", reason="nats-py is not installed")

from sharedtensor.remote import natslink
from sharedtensor.remote.bins import Store
from sharedtensor.remote.rl import Trainer, Worker

POLICY = """
rules:
  - {tokens: [writer], write: [bin.mine]}
  - {tokens: [part], write: [bin.mine.a.*]}
  - {tokens: [reader], read: [bin.mine]}
  - {tokens: [trainer], write: [rl.walk]}
  - {tokens: [worker], write: [rl.walk.worker]}
  - {tokens: [slow], write: [bin.slow], quota: {requests: 20}}
"""
NAMES = ["writer", "part", "reader", "trainer", "worker", "slow"]


def token(name: str) -> str:
    return f"token-of-the-client-{name}"


@pytest.fixture(scope="module")
def gateway(programs: Path) -> Iterator[Gateway]:
    if not (programs / "sharedtensor-gateway").exists():
        pytest.skip("sharedtensor-gateway is not among the programs: .ci/remote builds it")
    with tempfile.TemporaryDirectory(prefix="st") as name:
        folder = Path(name)
        policy, tokens = folder / "policy.yaml", folder / "tokens"
        policy.write_text(POLICY)
        policy.chmod(0o600)
        tokens.write_text("".join(f"{token(name)} {name}\n" for name in NAMES))
        tokens.chmod(0o600)
        started = Gateway(programs, folder, "--policy", str(policy), "--token-file", str(tokens))
        yield started
        started.stop()


async def opened(gateway: Gateway, name: str, namespace: str) -> Store:
    """Returns a namespace, which the gateway creates soon after it has started."""
    until = time.monotonic() + 60
    while True:
        try:
            return await Store.open(gateway.nats, namespace=namespace, token=token(name), framework="numpy")
        except st.errors.Error:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.2)


def run(test: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(test(), 120)

    return asyncio.run(bounded())


def test_bins_of_a_namespace(gateway: Gateway) -> None:
    async def test() -> None:
        large = np.arange(1 << 20, dtype=np.float32)  # over the maximum of a message
        async with await opened(gateway, "writer", "mine") as writer, await opened(gateway, "reader", "mine") as reader:
            events = reader.listen("a.b", initial=True)
            assert (await anext(events)).items == 0
            for value in ({"reward": 1}, {"obs": large}):
                await writer.append("a.b", value)
            assert [(await anext(events)).items for _ in range(2)] == [1, 2]
            await events.aclose()
            assert np.array_equal((await reader.peek("a.b"))[1].value["obs"], large)
            assert await reader.list() == {"a.b": 2}
            for change in (lambda: reader.append("a.b", 1), lambda: reader.take("a.b"), lambda: reader.delete("a.b")):
                with pytest.raises(st.PermissionDeniedError, match=r"no right to bin"):
                    await change()
            assert len(await writer.take("a.b")) == 2
            assert await reader.peek("a.b") == []
            with pytest.raises(st.PermissionDeniedError, match=r"BINS_other"):
                await Store.open(writer.conn, namespace="other")

    run(test)


def test_bins_whose_names_match(gateway: Gateway) -> None:
    async def test() -> None:
        async with await opened(gateway, "writer", "mine") as writer, await opened(gateway, "part", "mine") as part:
            await writer.append("b.c", "of others")
            for round in range(2):
                await part.append("a.c", round)
                events = part.listen("a.c", initial=True)
                assert (await anext(events)).items == 1
                await events.aclose()
                assert [item.value for item in await part.take("a.c", 1)] == [round]
            for refused in (lambda: part.append("b.c", 1), lambda: part.peek("b.c"), lambda: part.take("b.c")):
                with pytest.raises(st.PermissionDeniedError):
                    await refused()
            await writer.delete("b.c")

    run(test)


def test_members_of_a_run(gateway: Gateway) -> None:
    def joined(kind: Any, name: str) -> Any:
        until = time.monotonic() + 60
        while True:
            try:
                return kind(gateway.nats, run="walk", token=token(name), name=name, framework="numpy")
            except st.errors.Error:  # the gateway creates the run
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    weights = np.arange(1 << 19, dtype=np.float32)
    with joined(Trainer, "trainer") as trainer, joined(Worker, "worker") as worker:
        for version in range(5):  # older parameters are removed
            assert trainer.publish({"w": weights + version}) == version
            assert np.array_equal(worker.wait(version - 1, 60)["w"], weights + version)
        for value in ({"reward": 1.0}, {"obs": weights}):
            worker.add(value)
        samples: list[Any] = []
        while len(samples) < 2:
            for sample in trainer.pull(2, timeout=60):
                samples.append(sample.value)
                sample.ack()
        assert samples[0] == {"reward": 1.0} and np.array_equal(samples[1]["obs"], weights)
    with pytest.raises(st.PermissionDeniedError):
        Trainer(gateway.nats, run="walk", token=token("worker"))
    with pytest.raises(st.PermissionDeniedError):
        Worker(gateway.nats, run="walk", token=token("reader"))


def test_requests_have_a_quota(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with await opened(gateway, "slow", "slow") as store:
            begin = time.monotonic()
            for i in range(50):
                await store.append("a", i)
            assert time.monotonic() - begin > 1, "20 requests per second, after a burst of as many"
            assert [item.value for item in await store.peek("a")] == list(range(50))
            monkeypatch.setattr(natslink, "_QUOTA_WAIT", 0.0)
            with pytest.raises(st.ResourceExhaustedError, match="slow may send 20 per second"):
                await asyncio.gather(*(store.append("b", i) for i in range(60)))

    run(test)
