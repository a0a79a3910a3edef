"""A client of bins, written from FORMAT.md: bins_client.py URL NAMESPACE. It appends, reads and takes items beside Go programs."""

import asyncio
import hashlib
import json
import sys
import uuid

import nats

LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."


def escape(name):
    return "".join(chr(c) if c in LETTERS else f"%{c:02X}" for c in name.encode())


class Bins:
    def __init__(self, conn, namespace):
        self.conn, self.js, self.namespace = conn, conn.jetstream(), namespace
        self.stream = "BINS_" + namespace

    def subject(self, name, root="bin"):
        return f"{root}.{self.namespace}.{escape(name)}"

    async def write(self, name, body, op="append", quoted_type=""):
        headers = {"Bin-Op": op, "Bin-Size": str(len(body)), "Nats-Msg-Id": uuid.uuid4().hex}
        if op == "put":
            headers["Nats-Rollup"] = "sub"
        if quoted_type:
            headers["Bin-Type"] = quoted_type
        if len(body) > 256 << 10:
            store = await self.js.object_store(self.stream)
            headers["Bin-Object"] = uuid.uuid4().hex
            headers["Bin-Sha256"] = hashlib.sha256(body).hexdigest()
            await store.put(headers["Bin-Object"], body)
            body = b""
        return (await self.js.publish(self.subject(name), body, headers=headers)).seq

    async def read(self, name):
        """Returns the items as (sequence, headers, body), and the sequence number of the newest claim."""
        items, claim, start = [], 0, 1
        while True:
            inbox = self.conn.new_inbox()
            answers = await self.conn.subscribe(inbox)
            request = {"seq": start, "next_by_subj": f"*.{self.namespace}.{escape(name)}", "batch": 512, "max_bytes": 8 << 20}
            await self.conn.publish(f"$JS.API.DIRECT.GET.{self.stream}", json.dumps(request).encode(), reply=inbox)
            got = 0
            while True:
                msg = await answers.next_msg(timeout=10)
                headers = msg.headers or {}
                if headers.get("Status"):
                    break
                got += 1
                sequence = int(headers["Nats-Sequence"])
                start = sequence + 1
                if headers["Nats-Subject"].startswith("bin-take."):
                    claim = sequence
                    items = [i for i in items if i[0] > int(headers["Bin-Up-To"])]
                    continue
                if headers["Bin-Op"] == "put":
                    items = []
                items.append((sequence, headers, msg.data))
            await answers.unsubscribe()
            if not got or int(headers.get("Nats-Num-Pending", "0")) == 0:
                return items, claim

    async def body(self, headers, data):
        if "Bin-Object" in headers:
            store = await self.js.object_store(self.stream)
            data = (await store.get(headers["Bin-Object"])).data
            assert hashlib.sha256(data).hexdigest() == headers["Bin-Sha256"]
        assert len(data) == int(headers["Bin-Size"])
        return data

    async def take(self, name):
        while True:
            items, before = await self.read(name)
            if not items:
                return []
            bodies = [await self.body(headers, data) for _, headers, data in items]
            up_to = items[-1][0]
            claim = {
                "Bin-Op": "take", "Bin-Up-To": str(up_to), "Bin-Items": str(len(items)), "Bin-Before": str(before),
                "Nats-Expected-Last-Subject-Sequence": str(before), "Nats-Rollup": "sub", "Nats-Msg-Id": uuid.uuid4().hex,
            }
            try:
                ack = await self.js.publish(self.subject(name, "bin-take"), b"", headers=claim)
            except nats.js.errors.APIError as e:
                if e.err_code != 10071:
                    raise
                continue  # another taker was first
            await self.js.purge_stream(self.stream, subject=self.subject(name), seq=up_to + 1)
            settled = {
                "Bin-Op": "settled", "Bin-Up-To": str(up_to), "Bin-Items": str(len(items)), "Bin-Before": str(ack.seq), "Bin-Claim": "take",
                "Bin-Since": str(before), "Nats-Rollup": "sub", "Nats-TTL": "5m", "Nats-Expected-Last-Subject-Sequence": str(ack.seq),
            }
            try:
                await self.js.publish(self.subject(name, "bin-take"), b"", headers=settled)
            except nats.js.errors.APIError as e:
                if e.err_code != 10071:  # a newer claim, whose taker settles it
                    raise
            return bodies


async def main():
    conn = await nats.connect(sys.argv[1])
    bins = Bins(conn, sys.argv[2])
    for name in ("from go", "from.go"):
        items, _ = await bins.read(name)
        bodies = [await bins.body(headers, data) for _, headers, data in items]
        assert bodies == [b"small", b"large" * (1 << 17)], [len(b) for b in bodies]
        assert await bins.take(name) == bodies
        assert await bins.take(name) == []
    await bins.write("from python", b"old")
    await bins.write("from python", b"small", op="put", quoted_type='"text/plain; x=\\u00e4"')
    await bins.write("from python", b"large" * (1 << 17))
    print("done", flush=True)
    # Takers in both languages share the items of a bin.
    taken = []
    while b"end" not in taken:
        taken += await bins.take("shared")
        await asyncio.sleep(0.005)
    print(json.dumps([b.decode() for b in taken]), flush=True)
    await conn.close()


asyncio.run(main())
