"""The asyncio client."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
from conftest import Owner, eventually

import sharedtensor as st
from sharedtensor import importing


def test_asyncio_client(module_owner: Owner) -> None:
    async def main() -> None:
        async with await st.aio.connect(module_owner.socket, framework="numpy") as c:
            assert (await c.acquire("base"))["layers.0.weight"].shape == (64, 64)
            x = np.ones(4, np.float32)
            results = await asyncio.gather(*(c.call("transform", x=x, scale=i) for i in range(100)))
            assert [r[0] for r in results] == list(range(100))
            steps = [e["step"] async for e in c.stream("spectral_norm", a=np.eye(3, dtype=np.float32), steps=40)]
            assert steps == list(range(1, 41))
            seen: list[st.TaskInfo] = []
            task = await c.submit("build_model", hidden_size=12, layers=3, pace_ms=20)
            assert len(await task.wait(progress=seen.append)) == 3 and seen[-1].state == "completed"
            assert await c.publish("aio", {"x": x}) == 1
            assert any(m.name == "aio" for m in await c.list()) and (await c.inspect("aio")).specs[0].name == "x"
            await c.withdraw("aio")
            with pytest.raises(st.NotFoundError):
                await c.acquire("aio")
            assert "transform" in repr(await c.endpoints()) and (await c.info()).stats.requests > 0
            assert any(t.id == task.id for t in await c.tasks())
            async for info in c.watch_tasks(id=task.id):
                assert info.state == "completed"
                break
            held = await c.call_object("build_model", hidden_size=13, layers=1)
            assert (await c.object(held.id)).refs == 1 and held.id in {o.id for o in await c.objects("build_model")}
            assert (await c.destroy(held.id)).id == held.id
            with pytest.raises(st.StaleHandleError):
                await c.object(held.id)
            assert 0 < await c.ping() < 5 and await c.invalidate("build_model") >= 0
            with pytest.raises(st.DeadlineExceededError):
                await c.acquire("later", wait=0.1)
            waiting = asyncio.ensure_future(c.acquire("later", wait=20))
            await asyncio.sleep(0.1)
            await c.publish("later", {"x": x})
            assert (await waiting)["x"][0] == 1

    asyncio.run(main())


def test_cancelling_an_await_cancels_the_request(module_owner: Owner) -> None:
    async def main() -> None:
        async with await st.aio.connect(module_owner.socket, framework="numpy") as c:
            begin = time.monotonic()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(c.call("build_model", hidden_size=45, layers=1000, pace_ms=100), 0.3)
            with pytest.raises(st.DeadlineExceededError):
                await c.call("build_model", hidden_size=46, layers=1000, pace_ms=100, timeout=0.2)
            assert time.monotonic() - begin < 10
            assert await c.call("transform", x=np.ones(1, np.float32), scale=3)

    asyncio.run(main())
    with st.connect(module_owner.socket) as c:
        eventually(lambda: not c.tasks(["running"], endpoint="build_model"), "the server goes on")


def test_following_and_watching(module_owner: Owner) -> None:
    async def main() -> None:
        async with await st.aio.connect(module_owner.socket, framework="numpy") as c:
            events = c.watch("followed")
            models = c.follow("followed")
            first = asyncio.ensure_future(models.__anext__())
            await asyncio.sleep(0.2)
            await c.publish("followed", {"x": np.full(3, 1)})
            assert (await asyncio.wait_for(first, 10))["x"][0] == 1
            await c.publish("followed", {"x": np.full(3, 2)})
            assert (await asyncio.wait_for(models.__anext__(), 10))["x"][0] == 2
            kinds = [(await asyncio.wait_for(events.__anext__(), 10)).kind for _ in range(2)]
            assert "connected" in kinds
            await models.aclose()
            await events.aclose()

    asyncio.run(main())


def test_waiting_uses_no_thread(module_owner: Owner) -> None:
    """Requests complete while more streams, followers and watches wait than asyncio has threads."""

    async def main() -> None:
        async with await st.aio.connect(module_owner.socket, framework="numpy") as c:
            waiting = [asyncio.ensure_future(anext(c.follow(f"never-{i}"))) for i in range(40)]
            watches = [c.watch(f"never-{i}") for i in range(40)]
            for watch in watches:
                assert (await asyncio.wait_for(anext(watch), 20)).kind == "connected"
            waiting += [asyncio.ensure_future(anext(watch)) for watch in watches]
            y = await asyncio.wait_for(c.call("transform", x=np.ones(2, np.float32), scale=2), 20)
            assert y[0] == 2 and not any(task.done() for task in waiting)
        # Closing the client ends all of them.
        ended = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20)
        assert all(isinstance(result, StopAsyncIteration) for result in ended), ended

    asyncio.run(main())


def test_requests_are_repeated_on_a_new_connection(make_owner: Callable[..., Owner]) -> None:
    owner = make_owner("owner")

    async def main() -> None:
        async with await st.aio.connect(owner.socket, framework="numpy") as c:
            assert len(await c.list()) == 1
            task = asyncio.ensure_future(c.call("build_model", hidden_size=47, layers=1000, pace_ms=100))
            await asyncio.sleep(0.2)
            owner.kill()
            with pytest.raises(st.ConnectionLostError):
                await task
            owner.restart()
            assert len(await c.list()) == 1

    asyncio.run(main())


def test_a_version_is_written_and_committed(module_owner: Owner) -> None:
    async def main() -> None:
        async with await st.aio.connect(module_owner.socket, framework="numpy") as c:
            w = await c.create("written later", {"x": ((3,), "float32")})
            w["x"][:] = 2
            version = await c.commit(w, source="test")
            assert ((await c.acquire("written later", version))["x"] == 2).all()

    asyncio.run(main())


def test_a_program_offers_functions(make_owner: Callable[..., Owner]) -> None:
    """Coroutines run in the program's loop, several at once, with their call, and end when their caller leaves."""
    owner = make_owner("serve", "--offers")

    async def main() -> None:
        loop, entered, left = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        async def double(x: int) -> int:
            assert asyncio.get_running_loop() is loop and st.current_call().endpoint == "double"
            await asyncio.sleep(0.2)
            return 2 * x

        async def count(n: int) -> AsyncIterator[int]:
            for i in range(n):
                await asyncio.sleep(0)
                yield i

        async def wait() -> None:
            entered.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                left.set()
                raise

        async with (
            await st.aio.connect(owner.socket, framework="numpy") as worker,
            await st.aio.connect(owner.socket, framework="numpy") as c,
            await worker.offer(calls=8, double=double, count=count, wait=wait, plain=lambda: 3) as offered,
        ):
            begin = time.monotonic()
            assert await asyncio.gather(*(c.call("double", x=i) for i in range(8))) == [2 * i for i in range(8)]
            assert time.monotonic() - begin < 1.2, "they run one after another"
            assert [i async for i in c.stream("count", n=5)] == [0, 1, 2, 3, 4]
            assert await c.call("plain") == 3
            with pytest.raises(st.SerializationError):
                await c.options(returns=str).call("plain")
            task = asyncio.ensure_future(c.call("wait"))
            await asyncio.wait_for(entered.wait(), 10)
            task.cancel()
            await asyncio.wait_for(left.wait(), 10)
            assert not await offered.wait(0.05)

            @worker.endpoint
            async def served() -> str:
                return "yes"

            serving = asyncio.ensure_future(worker.serve())
            while "served" not in repr(await c.endpoints()):
                await asyncio.sleep(0.02)
            assert await c.call("served") == "yes"
            serving.cancel()
            await asyncio.wait([serving])
            assert c.stats().leases == 0 and c.connected and c.server.protocol == 1

    asyncio.run(main())


def test_part_of_a_model_and_followers(module_owner: Owner) -> None:
    async def main() -> None:
        async with await st.aio.connect(module_owner.socket, framework="numpy") as c:
            part = await c.acquire("base", tensors=["layers.0.weight"])
            assert list(part) == ["layers.0.weight"] and part.partial
            async with c.follow("followed later") as follower:
                with pytest.raises(st.DeadlineExceededError):
                    await follower.wait_newer(timeout=0.1)
                await c.publish("followed later", {"x": np.full(2, 1)})
                assert (await follower.wait_newer(0, timeout=10))["x"][0] == 1 and follower.newest == 1
            with pytest.raises(st.ClosedError):
                await follower.wait_newer()

    asyncio.run(main())


def test_a_gpu_import_does_not_block_the_loop(module_owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing memory of a GPU takes long: a thread does it."""

    async def main() -> None:
        async with await st.aio.connect(module_owner.socket, framework="numpy") as c:
            threads = set()
            real = importing.import_memfd

            def slow(*args: Any, **more: Any) -> Any:
                threads.add(threading.get_ident())
                time.sleep(0.3)
                return real(*args, **more)

            monkeypatch.setattr(importing, "needs_driver", lambda frame: b"memfd" in frame.body)
            monkeypatch.setattr(importing, "import_memfd", slow)
            ticks = 0
            task = asyncio.ensure_future(c.acquire("base"))
            while not task.done():
                await asyncio.sleep(0.01)
                ticks += 1
            assert await task and ticks > 5 and threading.get_ident() not in threads

    asyncio.run(main())
