"""The faults of endpoint/remote/bins/testdata/faults.json, which the tests of the Go clients read too."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, Gateway

import sharedtensor as st

pytest.importorskip("nats", reason="nats-py is not installed")

from sharedtensor.remote import bins, natslink, payloads
from sharedtensor.remote.bins import Store
from sharedtensor.remote.natslink import nats
from sharedtensor.remote.rl import Trainer, Worker

TABLE = json.loads((ROOT / "endpoint/remote/bins/testdata/faults.json").read_text())


class Proxy:
    """Connects clients to NATS. It injects a fault at the next message on subjects with a prefix."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.kind = ""
        self.prefix = ""
        self.mute = False
        self.deaf = ""
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0, limit=1 << 26)
        self.url = f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        for writer in self._writers:
            writer.close()
        self._writers.clear()
        self.mute = False

    def inject(self, kind: str, prefix: str) -> None:
        self.kind, self.prefix = kind, prefix

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self.gateway.nats.removeprefix("nats://").split(":")
        try:
            from_server, to_server = await asyncio.open_connection(host, int(port), limit=1 << 26)
        except OSError:
            writer.close()
            return
        self._writers += [writer, to_server]
        self._later(0, lambda: self._pass(reader, to_server, self._sent))
        self._later(0, lambda: self._pass(from_server, writer, self._received))

    def _later(self, seconds: float, act: Callable[[], Any]) -> None:
        async def run() -> None:
            await asyncio.sleep(seconds)
            await act()

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _pass(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, see: Callable[[list[bytes]], bool]
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                words = line.split()
                if len(words) > 2 and words[0].endswith((b"PUB", b"MSG")):
                    line += await reader.readexactly(int(words[-1]) + 2)
                if see(words):
                    writer.write(line)
                    await writer.drain()
        writer.close()

    def _received(self, words: list[bytes]) -> bool:
        message = len(words) > 2 and words[0].endswith(b"MSG")
        return not (message and (self.mute or (self.deaf and words[1].decode() == self.deaf)))

    def _sent(self, words: list[bytes]) -> bool:
        if len(words) < 3 or not words[0].endswith(b"PUB"):
            return True
        answer = words[2].decode() if len(words) == (4 if words[0] == b"PUB" else 5) else ""
        if self.deaf == answer:
            self.deaf = ""
        if not self.prefix or not words[1].decode().startswith(self.prefix):
            return True
        self.prefix = ""
        self.mute = self.kind != "answer-lost"
        if self.kind == "answer-lost":
            self.deaf = answer
        elif self.kind == "answers-lost":
            self._later(TABLE["window_seconds"] * 1.5, self._loud)
        else:
            self._later(0.1, self._restart if self.kind == "restart" else self._cut)
        return True

    async def _loud(self) -> None:
        self.mute = False

    async def _cut(self) -> None:
        self.cut()

    async def _restart(self) -> None:
        await asyncio.to_thread(self.gateway.restart)
        self.cut()


async def shorten(gateway: Gateway, stream: str, seconds: float) -> None:
    """Sets the duplicate window of a stream."""
    conn = await nats.connect(gateway.nats)
    js = conn.jetstream()
    config = (await js.stream_info(stream)).config
    config.duplicate_window = seconds
    await js.update_stream(config)
    await conn.close()


@pytest.mark.parametrize("row", TABLE["operations"], ids=lambda row: f"{row['operation']}-{row['fault']}")
def test_fault_table(gateway: Gateway, own_gateway: Gateway, row: dict[str, Any], monkeypatch: Any) -> None:
    to = own_gateway if row["fault"] == "restart" else gateway
    space = "f" + uuid.uuid4().hex[:12]
    operation: str = row["operation"]
    delivered: list[float] = []

    def taken(items: list[Any]) -> None:
        delivered.extend(float(np.asarray(item.value["x"]).flat[0]) for item in items)

    async def bin_row(proxy: Proxy) -> int:
        async with await Store.open(to.nats, namespace=space, framework="numpy") as straight:
            if row["fault"] == "answers-lost":
                await shorten(to, straight.stream, TABLE["window_seconds"])
            if operation.startswith("take"):
                for i in range(row["delivered"]):
                    await straight.append("a", {"x": np.full(1 << 17, i, np.float32)})
            async with await Store.open(proxy.url, namespace=space, framework="numpy") as store:
                if operation == "append":
                    proxy.inject(row["fault"], "bin.")
                    await store.append("a", 1)
                elif operation == "put-if-last":
                    proxy.inject(row["fault"], "bin.")
                    await store.write("a", "put", payloads.BYTES, b"1", last=0)
                elif operation == "take":
                    proxy.inject(row["fault"], "bin-take.")
                    taken(await store.take("a"))
                elif operation == "take-meanwhile":
                    stores = [await Store.open(to.nats, namespace=space, framework="numpy") for _ in range(4)]

                    async def taker(one: Store) -> None:
                        while items := await one.take("a", 1):
                            taken(items)

                    await asyncio.gather(*(taker(one) for one in stores))
                    for one in stores:
                        await one.close()
                else:
                    monkeypatch.setattr(bins, "_CLAIM_WINDOW", 0.0)
                    real, calls = store._load, 0

                    async def load(stored: Any) -> Any:
                        nonlocal calls
                        item, calls = await real(stored), calls + 1
                        if calls == 1:
                            monkeypatch.setattr(bins, "_CLAIM_WINDOW", 30.0)
                            taken(await straight.take("a"))
                            await natslink.purge(straight._js, straight.stream, straight.subject("a", "bin-take"))
                            monkeypatch.setattr(bins, "_CLAIM_WINDOW", 0.0)
                        return item

                    monkeypatch.setattr(store, "_load", load)
                    taken(await store.take("a"))
        return 0

    async def count() -> int:
        async with await Store.open(to.nats, namespace=space, framework="numpy") as straight:
            return len(await straight.peek("a"))

    async def main() -> tuple[str, int]:
        proxy = Proxy(to)
        await proxy.start()
        outcome = "ok"
        try:
            if operation == "add":
                with Trainer(to.nats, run=space) as trainer:
                    if row["fault"] == "answers-lost":
                        await shorten(to, trainer._queue, TABLE["window_seconds"])
                    worker = await asyncio.to_thread(lambda: Worker(proxy.url, run=space, name="w"))
                    proxy.inject(row["fault"], "queue.")
                    try:
                        await asyncio.to_thread(worker.add, 1)
                    finally:
                        await asyncio.to_thread(worker.close)
                        conn = await nats.connect(to.nats)
                        items = (await conn.jetstream().stream_info(f"QUEUE_rl_{space}")).state.messages
                        await conn.close()
            else:
                await bin_row(proxy)
        except st.ConnectionLostError:
            outcome = "unknown"
        finally:
            await proxy.close()
        return outcome, items if operation == "add" else await count()

    outcome, items = asyncio.run(asyncio.wait_for(main(), 120))
    assert outcome in row["outcome"]
    assert items == row["items"]
    assert len(delivered) == len(set(delivered)) == row.get("delivered", 0)


def test_samples_that_cannot_be_read(gateway: Gateway) -> None:
    run = "f" + uuid.uuid4().hex[:12]
    with Trainer(gateway.nats, run=run, staleness=None) as trainer, Worker(gateway.nats, run=run, name="w") as worker:
        worker.add("first")

        async def add(sample: dict[str, Any]) -> None:
            body = sample["body"].encode()
            headers = {"Bin-Op": "append", "Bin-Size": str(len(body)), **sample["headers"]}
            headers = {name: value for name, value in headers.items() if value}
            await worker._js.publish(f"queue.rl_{run}.v-1.w", body, headers=headers)

        for sample in TABLE["samples"]:
            worker._background.run(add(sample))
        worker.add("last")
        found: list[Any] = []
        for _ in range(60):
            for sample in trainer.pull(16, timeout=1):
                found.append(sample.value)
                sample.ack()
            if len(found) >= 2 and trainer.damaged == len(TABLE["samples"]):
                break
        assert found == ["first", "last"] and trainer.damaged == len(TABLE["samples"])


UNHEARD = nats.js.errors.ServiceUnavailableError()  # no server receives requests to JetStream


@pytest.mark.parametrize(
    ("err", "raised"),
    [
        (UNHEARD, st.UnavailableError),
        (nats.js.errors.ServiceUnavailableError(code=503, err_code=10008, description="starting"), st.UnavailableError),
        (nats.js.errors.APIError(code=500, err_code=10158, description="in process"), st.UnavailableError),
        (nats.js.errors.APIError(code=400, err_code=10052, description="bad"), st.ConfigurationError),
        (nats.js.errors.APIError(code=403, description="forbidden"), st.PermissionDeniedError),
        (nats.js.errors.APIError(code=429, description="busy"), st.ResourceExhaustedError),
        (nats.js.errors.NotFoundError(code=404, description="missing"), st.NotFoundError),
        (nats.errors.NoRespondersError(), st.UnavailableError),
        (nats.errors.ConnectionClosedError(), st.UnavailableError),
        (nats.errors.TimeoutError(), st.UnavailableError),
        (nats.errors.OutboundBufferLimitError(), st.UnavailableError),
        (asyncio.TimeoutError(), st.UnavailableError),
    ],
)
def test_errors_of_requests(err: Exception, raised: type[Exception], monkeypatch: Any) -> None:
    """Each failure of NATS is an error of this package. A request that no server received is repeated."""
    monkeypatch.setattr(natslink, "TIMEOUT", 0.3)
    monkeypatch.setattr(natslink, "_QUOTA_WAIT", 0.3)

    def request(failures: int) -> str:
        async def once() -> str:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise err
            return "answer"

        class Connection:
            pass

        return asyncio.run(natslink.manage(Connection(), "$JS.API.X", once))

    with pytest.raises(raised):
        request(1000)
    if err is UNHEARD:
        assert request(2) == "answer"
