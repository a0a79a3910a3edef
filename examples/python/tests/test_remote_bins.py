"""Bins of a gateway: values of every type, takers, listeners, and programs in Go."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Gateway

import sharedtensor as st
from sharedtensor.dtypes import DType
from sharedtensor.remote import payloads
from sharedtensor.remote.elements import RawTensor, raw

pytest.importorskip("nats", reason="nats-py is not installed")

from sharedtensor.remote import bins, natslink
from sharedtensor.remote.bins import ConflictError, Store, escape, quote, unescape, unquote
from sharedtensor.remote.tensorshare import TensorShare

# The client of tensorshare's README, with its import changed and the address of the gateway.
README = """
from sharedtensor.remote.tensorshare import TensorShare
from threading import Thread
import torch


def do_something(ts):
    ts.put('data_bin', dict(a=torch.randn(2, 2), version=0))  # Not blocking
    ts.peek('data_bin', lambda x: print('peek data_bin', x))  # Get data in the bin and it
    
    # Alternatively specify a callback
    def cb_get_data(response):
        ts.get('xyz', lambda x: print('get xyz', x))  # This is called as soon as the server responds
    ts.put('xyz', dict(a=torch.randn(2, 2), version=0), callback=cb_get_data)

    # Listening to data bins
    def cb_bin_updated(msg):
        if 'bin' in msg.keys():
            print('Bin', msg['bin'], 'updated. Num items: ', msg['n_items'])
    ts.listen('xyz', cb_bin_updated)    # Listen to changes in bin xyz, calling cb_bin_updated whenever it happens 
    ts.append('xyz', torch.randn(2, 2))    # Appending will not overwrite data in the bin, but append to it, creating a list
    ts.append('xyz', torch.randn(2, 2))
    ts.get('xyz', lambda x: print('get xyz', x))   # Get removes data in the bin, which will also emit a notification.
    ts.put('xyz', torch.randn(2, 2))
    
    def cb_print_and_exit(resp):
        print(resp)
        ts.stop()
    ts.list(cb_print_and_exit)  # List the number of items in all bins 

    
tmp = TensorShare('localhost', PORT, namespace='readme')
Thread(target=do_something, args=(tmp, ), daemon=True).start()
tmp.start() # This is blocking and must be started in the main thread.
"""


def port(gateway: Gateway) -> int:
    return int(gateway.nats.rpartition(":")[2])


def namespace() -> str:
    return uuid.uuid4().hex


def test_readme_of_tensorshare_runs(gateway: Gateway) -> None:
    pytest.importorskip("torch", reason="torch is not installed: the program uses it")
    env = {"PYTHONPATH": str(Path(st.__file__).parent.parent)}
    program = README.replace("PORT", str(port(gateway)))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    out = done.stdout
    assert "peek data_bin {'status': 'OK', 'data': {'a': tensor(" in out and "'version': 0}}" in out
    assert "get xyz {'status': 'OK', 'data': " in out and "Bin xyz updated. Num items:  2\n" in out
    assert "{'status': 'OK', 'data': {'data_bin': 1, 'xyz': 1}}" in out or "'xyz': 1" in out.splitlines()[-1], out


def test_every_type_returns_unchanged() -> None:
    for dtype in DType:
        elements = dtype.block[0] if dtype.block else 8
        data = bytes(i % 2 if dtype is DType.BOOL else i * 11 % 256 for i in range(dtype.nbytes(2 * elements)))
        sent = RawTensor(dtype, (2, elements), data)
        for value in (sent, {"x": sent}, [{"deep": (sent, None)}]):
            media_type, body = payloads.encode(value)
            back = payloads.decode(media_type, body, "numpy")
            found = raw(back["x"] if isinstance(back, dict) else back[0]["deep"][0] if isinstance(back, list) else back)
            assert (found.dtype, found.shape, bytes(found.data)) == (dtype, sent.shape, data), media_type
    with pytest.raises(st.SerializationError):
        payloads.encode(object())
    with pytest.raises(st.Error):
        payloads.decode(payloads.CBOR, b"\xff", "numpy")
    for damaged in (b"", b"\xff" * 8, (8).to_bytes(8, "little") + b"{}      x"[:7]):
        with pytest.raises(st.Error):
            payloads.decode(payloads.SAFETENSORS, damaged, "numpy")


def test_bins(gateway: Gateway) -> None:
    async def main() -> None:
        async with await Store.open(gateway.nats, namespace=namespace(), framework="numpy") as store:
            assert await store.peek("a b") == [] and await store.take("a b") == []
            await store.append("a b", 1)
            await store.put("a b", {"x": np.arange(300_000.0)}, meta={"step": "3 ä"})
            await store.append("a b", [np.ones(2, np.int8), "text", {"n": None}])
            first, second = await store.peek("a b")
            assert np.array_equal(first.value["x"], np.arange(300_000.0)) and first.put and not second.put
            assert first.meta == {"step": "3 ä"} and first.type == payloads.SAFETENSORS
            assert second.value[1:] == ["text", {"n": None}] and second.value[0].dtype == np.int8
            assert await store.list() == {"a b": 2}
            assert len(await store.take("a b", 1)) == 1 and await store.list() == {"a b": 1}
            with pytest.raises(ConflictError):
                await store.write("a b", "put", payloads.BYTES, b"", last=1)
            await store.delete("a b")
            assert await store.list() == {} and await store.take("a b", wait=0.1) == []

    asyncio.run(main())


def test_takers_share_items_and_wait(gateway: Gateway) -> None:
    async def main() -> None:
        async with await Store.open(gateway.nats, namespace=namespace(), framework="numpy") as store:
            waiting = asyncio.create_task(store.take("late", wait=30))
            await asyncio.sleep(0.2)
            await store.append("late", "here")
            assert [item.value for item in await waiting] == ["here"]
            taken: list[int] = []

            async def taker() -> None:
                while len(taken) < 40:
                    taken.extend(item.value for item in await store.take("shared", 3, wait=0.2))

            async def writer() -> None:
                for i in range(40):
                    await store.append("shared", i)

            await asyncio.wait_for(asyncio.gather(taker(), taker(), writer()), 60)
            assert sorted(taken) == list(range(40))

    asyncio.run(main())


def test_listeners_receive_each_change_across_a_restart(own_gateway: Gateway) -> None:
    async def main() -> None:
        async with await Store.open(own_gateway.nats, framework="numpy") as store:
            await store.append("x", 0)
            seen: list[tuple[str, int]] = []

            async def listen() -> None:
                async for event in store.listen("x"):
                    seen.append((event.op, event.items))
                    if event.op == "delete":
                        return

            listening = asyncio.create_task(listen())
            await asyncio.sleep(0.3)
            await store.append("x", 1)
            await store.put("x", 2)
            await store.take("x")
            await asyncio.to_thread(own_gateway.restart)
            await store.append("x", 3)
            for _ in range(1200):
                if len(seen) == 4:
                    break
                await asyncio.sleep(0.05)
            await store.delete("x")
            await asyncio.wait_for(listening, 60)
            assert seen == [("append", 2), ("put", 1), ("take", 0), ("append", 1), ("delete", 0)]

    asyncio.run(main())


def test_taken_items_that_cannot_be_removed_are_returned(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise st.ResourceExhaustedError("the quota is used up")

    async def main() -> None:
        async with await Store.open(gateway.nats, namespace=namespace(), framework="numpy") as store:
            await store.append("x", {"large": np.zeros(1 << 18)})
            await store.append("x", 1)
            monkeypatch.setattr(natslink, "purge", refuse)
            assert len(await store.take("x")) == 2
            assert await store.peek("x") == [] and await store.take("x") == []
            monkeypatch.undo()
            await store.append("x", 2)
            assert [item.value for item in await store.take("x", 1)] == [2]

    asyncio.run(main())


def test_a_part_of_many_items_is_taken(gateway: Gateway) -> None:
    async def main() -> None:
        async with await Store.open(gateway.nats, namespace=namespace(), framework="numpy") as store:
            for i in range(1100):  # three batches
                await store.append("x", i)
            taken = [item.value for most in (3, 600, 10) for item in await store.take("x", most)]
            assert taken == list(range(613))
            assert [item.value for item in await store.take("x")] == list(range(613, 1100))

    asyncio.run(main())


def test_programs_in_go_use_the_same_bins(gateway: Gateway) -> None:
    def command(*words: str, stdin: str = "") -> str:
        line = [gateway.program, "bin", words[0], "--nats", gateway.nats, *words[1:]]
        return subprocess.run(line, input=stdin, capture_output=True, text=True, timeout=60, check=True).stdout

    command("append", "from go", stdin='{"reward": 12}')

    async def main() -> None:
        async with await Store.open(gateway.nats, framework="numpy") as store:
            (item,) = await store.take("from go")
            assert (json.loads(item.value) if isinstance(item.value, bytes) else item.value) == {"reward": 12}
            await store.append("from python", b"text")
            assert "from python" in command("ls")
            assert "text" in command("get", "from python")
            assert "from python" not in await store.list()

    asyncio.run(main())


def test_callbacks(gateway: Gateway) -> None:
    done = threading.Event()
    answers: list[Any] = []
    with TensorShare(port=port(gateway), namespace=namespace(), framework="numpy") as ts:
        ts.get("empty", answers.append)
        ts.put("list", [1, 2])
        ts.append("list", 3)
        ts.get("list", answers.append)
        ts.put("bad", object(), answers.append)
        ts.delete("list", lambda _: done.set())
        assert done.wait(30)
    assert [a["status"] for a in answers] == ["ERR", "OK", "ERR"] and answers[1]["data"] == [1, 2, 3]
    with pytest.raises(st.UnavailableError):
        TensorShare(port=9, framework="numpy", allow_reconnect=False, wait=0.5)


def test_names_and_quotes() -> None:
    for name in ("x", "a b.c", "ä%/", "a.b-c_d"):
        assert unescape(escape(name)) == name
    for name in ("", "a..b", ".", "x" * 201):
        with pytest.raises(st.InvalidArgumentError):
            escape(name)
    for text in ("plain", 'a "quote" \\ \n\t', "ä\U0001f600\x00"):
        assert quote(text).isascii() and unquote(quote(text)) == text
    assert unquote('"\\x41\\a"') == "A\a"


def test_takers_of_large_bodies_share_them(gateway: Gateway) -> None:
    """Each item is delivered once while several clients take; none of them fails."""

    async def main() -> None:
        namespace = f"large{uuid.uuid4().hex[:8]}"
        body = np.arange(300_000, dtype=np.float32)
        async with await Store.open(gateway.nats, namespace=namespace, framework="numpy") as store:
            for i in range(6):
                await store.append("b", body + i)

            async def taker() -> list[float]:
                found = []
                async with await Store.open(gateway.nats, namespace=namespace, framework="numpy") as mine:
                    while items := await mine.take("b", 1):
                        found += [float(item.value[0]) for item in items]
                        await mine.peek("b")
                return found

            taken = await asyncio.gather(*(taker() for _ in range(4)))
            assert sorted(value for found in taken for value in found) == [0, 1, 2, 3, 4, 5]

    asyncio.run(main())


def test_a_slow_taker_does_not_get_items_of_another(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim of a taker whose load takes long is compared with the present state."""
    monkeypatch.setattr(bins, "_CLAIM_WINDOW", 0.0)

    async def main() -> None:
        namespace = f"slow{uuid.uuid4().hex[:8]}"
        async with await Store.open(gateway.nats, namespace=namespace) as slow:
            async with await Store.open(gateway.nats, namespace=namespace) as quick:
                await slow.append("b", 1)
                real, taken = slow._load, []

                async def load(stored: Any) -> Any:
                    item = await real(stored)
                    if not taken:
                        taken.extend(await quick.take("b"))
                        # As after five minutes, when the server has forgotten the claim.
                        await natslink.purge(slow._js, slow.stream, slow.subject("b", "bin-take"))
                    return item

                monkeypatch.setattr(slow, "_load", load)
                assert await slow.take("b") == [] and [item.value for item in taken] == [1]

    asyncio.run(main())


def test_an_exception_does_not_end_tensorshare(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    host, port = gateway.nats.removeprefix("nats://").split(":")
    answers: list[dict[str, Any]] = []
    done = threading.Event()
    with TensorShare(host, int(port), namespace=f"ts{uuid.uuid4().hex[:8]}") as ts:

        def note(answer: dict[str, Any]) -> None:
            answers.append(answer)
            if len(answers) == 2:
                done.set()

        ts.put("b", object(), note)  # raises what is no error of this package
        monkeypatch.setattr(ts._store, "peek", lambda bin: 1 / 0)
        ts.peek("b", note)
        assert done.wait(15), answers
    assert [a["status"] for a in answers] == ["ERR", "ERR"] and "ZeroDivisionError" in answers[1]["msg"]
