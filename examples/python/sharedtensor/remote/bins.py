"""Named bins of values on NATS JetStream.

>>> from sharedtensor.remote.bins import Store
>>> async with await Store.open("nats://gpu7:4222") as store:
...     await store.append("episodes", {"obs": obs, "reward": 12})
...     items = await store.take("episodes", wait=30)
...     async for event in store.listen("episodes"): print(event.items)

`TensorShare` is the same for programs without asyncio, with the interface of tensorshare. The format is that of
endpoint/remote/bins/FORMAT.md, so that programs in Go use the same bins. No value is pickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from .. import frameworks
from ..errors import (
    ConnectionLostError,
    Error,
    InvalidArgumentError,
    NotFoundError,
    ProtocolError,
    UnavailableError,
)
from ..frameworks import Framework
from . import natslink, payloads
from .natslink import ConflictError, RepeatedConflictError, api, nats
from .objects import Objects

Stored = tuple[int, dict[str, str], bytes]
"""An item as it was read: sequence number, headers and inline body."""
_StoredList = list[Stored]
_Items = list["Item"]
_Sequences = list[int]

_GONE_ATTEMPTS = 6
_CLAIM_WINDOW = 30.0  # seconds from reading a bin to the claim on it, as in Go; claims are kept for five minutes
_INLINE = 256 << 10  # bytes of a body in its message
_IDLE = 60.0  # seconds after which the server removes the consumer of a listener that has ended


@dataclass(frozen=True)
class Item:
    """A value of a bin.

    :ivar sequence: orders all items of a namespace.
    :ivar meta: texts of the writer.
    :ivar put: whether it replaced earlier items; otherwise it was appended.
    """

    value: Any
    sequence: int
    type: str = ""
    meta: dict[str, str] | None = None
    put: bool = False


@dataclass(frozen=True)
class Event:
    """A change of a bin.

    :ivar op: put, append, take or delete.
    :ivar items: the number of items after it.
    """

    bin: str
    op: str
    items: int
    sequence: int


class BodyGoneError(ProtocolError):
    """The body of an item was removed: another process has taken the item."""


class Store:
    """The bins of a namespace. `open` returns one."""

    def __init__(self, conn: Any, namespace: str, framework: Framework, own: bool) -> None:
        self.conn = conn
        self.namespace = namespace
        self.framework = framework
        self._own = own
        self._js = conn.jetstream(timeout=natslink.TIMEOUT)
        self.stream = f"BINS_{namespace}"

    @classmethod
    async def open(
        cls,
        server: Any = "nats://127.0.0.1:4222",
        *,
        namespace: str = "default",
        framework: str | None = None,
        **options: Any,
    ) -> Store:
        """Connects, and creates the namespace if it is missing.

        :param server: a URL, or a connection of nats-py, which stays open.
        :param framework: "torch" or "numpy", of received tensors; torch if it is installed.
        :param options: of `nats.connect`, such as `token`, `tls` and `user_credentials`.
        """
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", namespace):
            raise InvalidArgumentError(f"namespace {namespace!r}: use 1 to 64 letters, digits, '-' and '_'")
        own = isinstance(server, (str, list))
        chosen = frameworks.choose(framework)
        store = cls(await natslink.connect(server, **options) if own else server, namespace, chosen, own)
        try:
            subjects = f"bin.{namespace}.>", f"bin-take.{namespace}.>"
            await natslink.create_stream(store._js, store.stream, *subjects, rollup=True, ttl=True)
        except BaseException:
            await store.close()
            raise
        return store

    async def put(self, bin: str, value: Any, *, meta: Mapping[str, str] | None = None) -> int:
        """Replaces all items of a bin by a value and returns its sequence number."""
        return await self.write(bin, "put", *payloads.encode(value), meta=meta)

    async def append(self, bin: str, value: Any, *, meta: Mapping[str, str] | None = None) -> int:
        """Adds a value to a bin and returns its sequence number."""
        return await self.write(bin, "append", *payloads.encode(value), meta=meta)

    async def write(
        self,
        bin: str,
        op: str,
        media_type: str,
        body: bytes,
        *,
        meta: Mapping[str, str] | None = None,
        last: int | None = None,
    ) -> int:
        """Writes a body: "put" or "append".

        :param last: the sequence number that the newest item of the bin must have.

        Raises ResourceExhaustedError if the namespace is full, ConflictError for `last`, and ConnectionLostError if the
        body may be stored.
        """
        headers = {"Nats-Rollup": "sub"} if op == "put" else {}
        if last is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(last)
        id = uuid.uuid4().hex
        try:
            return await write(self._js, self.stream, self.subject(bin), op, media_type, body, meta or {}, headers, id)
        except RepeatedConflictError:
            for sequence, stored, _ in (await self._read(bin))[0]:
                if natslink.message_id(stored) == id:
                    return sequence
            raise

    async def peek(self, bin: str) -> _Items:
        """Returns the items of a bin."""
        return (await self._loaded(bin, 0))[0]

    async def _loaded(self, bin: str, max: int) -> tuple[_Items, _StoredList, int]:
        """Returns items with their bodies, how they are stored, and the number of the newest claim. A taker removes the
        body of a large item: if one is gone, the bin is read again."""
        for attempt in range(_GONE_ATTEMPTS):
            stored, before = await self._read(bin, max)
            stored = stored[:max] if max else stored
            try:
                return [await self._load(one) for one in stored], stored, before
            except BodyGoneError:
                if attempt + 1 == _GONE_ATTEMPTS:
                    raise
                await asyncio.sleep(0.05 * 2**attempt)
        raise AssertionError("unreachable")

    async def take(self, bin: str, max: int = 0, *, wait: float | None = None) -> _Items:
        """Returns and removes the items of a bin. Each is delivered to one taker at most.

        :param max: of the oldest items; 0 for all.
        :param wait: seconds to wait for an item. The result is empty if there is none.
        """
        items = await self._take(bin, max)
        if items or not wait:
            return items
        until = time.monotonic() + wait
        async with contextlib.aclosing(self.listen(bin, initial=True)) as events:
            while True:
                try:  # only waiting is cancelled: a take that is cancelled could lose its items
                    event = await asyncio.wait_for(anext(events), until - time.monotonic())
                except (asyncio.TimeoutError, TimeoutError):
                    return []
                if event.items and (items := await self._take(bin, max)):
                    return items

    async def _take(self, bin: str, max: int) -> _Items:
        while True:
            begin = time.monotonic()
            items, stored, before = await self._loaded(bin, max)
            if not stored:
                return []
            if time.monotonic() - begin > _CLAIM_WINDOW / 2:  # the server drops claims that are settled
                begin = time.monotonic()
                first, claim = await self._read(bin, 1)
                if claim != before or not first or first[0][0] != stored[0][0]:
                    continue  # another taker was first
            try:
                await self._claim(bin, "take", stored, before, begin + _CLAIM_WINDOW)
            except ConflictError:
                continue  # another taker was first
            return items

    async def delete(self, bin: str) -> None:
        """Removes all items of a bin."""
        while True:
            begin = time.monotonic()
            stored, before = await self._read(bin)
            if not stored:
                return
            with contextlib.suppress(ConflictError):
                await self._claim(bin, "delete", stored, before, begin + _CLAIM_WINDOW)
                return

    async def list(self) -> dict[str, int]:
        """Returns the number of items of each bin."""
        subject, query = f"$JS.API.STREAM.INFO.{self.stream}", {"subjects_filter": f"*.{self.namespace}.>"}
        info = await natslink.manage(
            self.conn, subject, lambda: self._js._api_request(subject, json.dumps(query).encode())
        )
        subjects = info["state"].get("subjects") or {}
        prefix, taken = f"bin.{self.namespace}.", f"bin-take.{self.namespace}."
        found = {}
        for subject, count in subjects.items():
            if not subject.startswith(prefix):
                continue
            bin = unescape(subject.removeprefix(prefix))
            if taken + subject.removeprefix(prefix) in subjects:
                count = len((await self._read(bin))[0])
            if count:
                found[bin] = int(count)
        return found

    async def listen(self, bin: str, *, initial: bool = False) -> AsyncGenerator[Event, None]:
        """Yields an event for each change of a bin, in order. Changes during a lost connection may be one event.

        :param initial: whether the first event has the present number of items.
        """
        subject = f"$JS.API.STREAM.INFO.{self.stream}"
        state = (await natslink.manage(self.conn, subject, lambda: self._js.stream_info(self.stream))).state
        last = int(state.last_seq)
        if initial:
            yield Event(bin, "", len((await self._read(bin))[0]), last)
        held: _Sequences = []
        async with contextlib.aclosing(self._follow(bin)) as messages:
            async for subject, headers, sequence in messages:
                op, before = headers.get("Bin-Op", ""), len(held)
                if subject.startswith("bin-take."):
                    held = [one for one in held if one > int(headers.get("Bin-Up-To", "0"))]
                else:
                    held = [sequence] if op == "put" else [*held, sequence]
                if op == "settled":
                    if before == len(held):
                        continue
                    op = headers.get("Bin-Claim", "take")  # its claim was not received
                if sequence > last:
                    yield Event(bin, op, len(held), sequence)

    async def _follow(self, bin: str) -> AsyncGenerator[tuple[str, dict[str, str], int], None]:
        """Yields subject, headers and sequence number of each message of a bin, from the first one on."""
        following = 1
        while True:
            reconnects, name = self.conn.stats["reconnects"], f"listener-{uuid.uuid4().hex}"
            try:
                changes = await self._consume(name, bin, following)
                try:
                    # A restarted server has lost the consumer.
                    while self.conn.stats["reconnects"] == reconnects:
                        try:
                            messages = await changes.fetch(256, timeout=1)
                        except (nats.errors.TimeoutError, asyncio.TimeoutError):
                            continue
                        for message in messages:
                            following = message.metadata.sequence.stream + 1
                            yield message.subject, dict(message.headers or {}), following - 1
                finally:
                    with contextlib.suppress(Exception):
                        await changes.unsubscribe()
                        await self._js.delete_consumer(self.stream, name)
            except (Error, nats.errors.Error, OSError, asyncio.TimeoutError) as err:
                if isinstance(err, Error) and not isinstance(err, UnavailableError):
                    raise
                if self.conn.is_closed:
                    raise UnavailableError("the connection is closed") from err
                await asyncio.sleep(0.2)

    async def _consume(self, name: str, bin: str, start: int) -> Any:
        """Makes a consumer of a bin, from a sequence number on, and returns its subscription."""
        config = api.ConsumerConfig(
            name=name,
            filter_subjects=[self.subject(bin), self.subject(bin, "bin-take")],
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=start,
            ack_policy=api.AckPolicy.NONE,
            headers_only=True,
            inactive_threshold=_IDLE,
            mem_storage=True,
        )
        subject = f"$JS.API.CONSUMER.CREATE.{self.stream}.{name}"
        await natslink.manage(self.conn, subject, lambda: self._js.add_consumer(self.stream, config))
        return await self._js.pull_subscribe_bind(name, self.stream)

    async def close(self) -> None:
        """Closes the connection, unless it was passed to `open`."""
        if self._own:
            await self.conn.close()

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def subject(self, bin: str, root: str = "bin") -> str:
        """Returns the subject of a bin, or with "bin-take" that of its claims."""
        return f"{root}.{self.namespace}.{escape(bin)}"

    async def _read(self, bin: str, enough: int = 0) -> tuple[_StoredList, int]:
        """Returns items as sequence number, headers and inline body, and the number of the newest claim.

        :param enough: stops after this number of the oldest items; 0 for all.
        """
        items: _StoredList = []
        claim, up_to, start, more = 0, 0, 1, True
        while more and not (0 < enough <= len(items)):
            messages, pending = await natslink.read(self.conn, self.stream, self.subject(bin, "*"), start)
            first, more = start == 1, pending > 0
            if messages:
                start = int(messages[-1].headers["Nats-Sequence"]) + 1
            if first and more and enough:  # claims follow the items that are not read
                claims, _ = await natslink.read(self.conn, self.stream, self.subject(bin, "bin-take"))
                messages += claims
            for message in messages:
                headers = dict(message.headers)
                sequence = int(headers["Nats-Sequence"])
                if headers["Nats-Subject"].startswith("bin-take."):
                    claim, up_to = max(claim, sequence), max(up_to, int(headers.get("Bin-Up-To", "0")))
                    items = [one for one in items if one[0] > up_to]
                    continue
                if headers.get("Bin-Op") == "put":
                    items = []
                if sequence > up_to:
                    items.append((sequence, headers, message.data))
        return items, claim

    async def _load(self, stored: Stored) -> Item:
        sequence, headers, data = stored
        body = await load(self._js, self.stream, headers, data)
        media_type = unquote(headers.get("Bin-Type", ""))
        meta = json.loads(unquote(headers["Bin-Meta"])) if "Bin-Meta" in headers else {}
        if headers.get("Bin-List") == "1":
            media_type = payloads.JSON
        value = payloads.decode(media_type, body, self.framework)
        return Item(value, sequence, media_type, meta, headers.get("Bin-Op") == "put")

    async def _claim(self, bin: str, op: str, stored: _StoredList, before: int, until: float) -> None:
        up_to = stored[-1][0]
        common = {"Bin-Up-To": str(up_to), "Bin-Items": str(len(stored)), "Nats-Rollup": "sub"}
        claim = {"Bin-Op": op, "Bin-Before": str(before), **common}
        subject, id = self.subject(bin, "bin-take"), uuid.uuid4().hex
        try:
            sequence = await natslink.publish(
                self._js, self.stream, subject, b"", {**claim, **_expect(before)}, id, until
            )
        except RepeatedConflictError:
            sequence = await self._settle_claim(bin, id, stored[0][0])
        settled = {
            "Bin-Op": "settled",
            "Bin-Before": str(sequence),
            "Bin-Claim": op,
            "Bin-Since": str(before),
            **common,
        }
        # The caller has the items now, also if they cannot be removed: readers ignore them, and a sweep removes them.
        with contextlib.suppress(Error):
            await natslink.purge(self._js, self.stream, self.subject(bin), up_to + 1)
            with contextlib.suppress(ConflictError):  # a newer claim, whose taker settles it
                await natslink.publish(
                    self._js, self.stream, subject, b"", {**settled, "Nats-TTL": "5m", **_expect(sequence)}
                )
            for _, headers, _ in stored:
                if "Bin-Object" in headers:
                    await Objects(self._js, self.stream).delete(headers["Bin-Object"])

    async def _settle_claim(self, bin: str, id: str, oldest: int) -> int:
        """Returns the sequence number of a claim that an unanswered attempt has stored. A restarted server may have
        lost its record of the id. The claim is stored if it is the newest one, and not if the oldest item still exists.

        Raises ConflictError, or ConnectionLostError if another claim may have replaced it.
        """
        items, _ = await self._read(bin, 1)
        claims, _ = await natslink.read(self.conn, self.stream, self.subject(bin, "bin-take"))
        if claims and natslink.message_id(claims[-1].headers) == id:
            return int(claims[-1].headers["Nats-Sequence"])
        if items and items[0][0] <= oldest:
            raise ConflictError(f"the bin {bin!r} has changed")
        raise ConnectionLostError(f"the bin {bin!r}: no answer, and its items are gone")


async def write(
    js: Any,
    stream: str,
    subject: str,
    op: str,
    media_type: str,
    body: bytes,
    meta: Mapping[str, str],
    headers: Mapping[str, str],
    id: str = "",
) -> int:
    """Writes an item of a bin or a queue and returns its sequence number."""
    headers = {"Bin-Op": op, "Bin-Size": str(len(body)), **headers}
    if media_type:
        headers["Bin-Type"] = quote(media_type)
    if meta:
        headers["Bin-Meta"] = quote(json.dumps(dict(meta)))
    if len(body) > _INLINE:
        store = await Objects.create(js, stream)
        headers["Bin-Object"] = uuid.uuid4().hex
        headers["Bin-Sha256"] = hashlib.sha256(body).hexdigest()
        await store.put(headers["Bin-Object"], body)
        try:
            return await natslink.publish(js, stream, subject, b"", headers, id)
        except (ConnectionLostError, RepeatedConflictError):
            raise  # the item may be stored
        except Error:
            with contextlib.suppress(Error):  # a sweep removes it
                await store.delete(headers["Bin-Object"])
            raise
    return await natslink.publish(js, stream, subject, body, headers, id)


async def load(js: Any, stream: str, headers: Mapping[str, str], data: bytes) -> bytes:
    """Returns the whole body of an item. Raises ProtocolError if it is damaged."""
    if "Bin-Object" in headers:
        try:
            data = await Objects(js, stream).get(headers["Bin-Object"])
        except NotFoundError as err:
            raise BodyGoneError("the body of an item is gone") from err
        if hashlib.sha256(data).hexdigest() != headers.get("Bin-Sha256"):
            raise ProtocolError("the body of an item has another digest")
    if str(len(data)) != headers.get("Bin-Size"):
        raise ProtocolError("the body of an item has another size")
    return data


def _expect(sequence: int) -> dict[str, str]:
    return {"Nats-Expected-Last-Subject-Sequence": str(sequence)}


def escape(name: str) -> str:
    """Returns the name of a bin as a part of a subject. Raises InvalidArgumentError for names that are not allowed."""
    if not 1 <= len(name.encode()) <= 200 or "" in name.split("."):
        raise InvalidArgumentError(f"bin {name!r}: use 1 to 200 bytes, with dots only between its parts")
    return "".join(chr(c) if re.fullmatch(r"[A-Za-z0-9_.-]", chr(c)) else f"%{c:02X}" for c in name.encode())


def unescape(text: str) -> str:
    """Returns the name of the bin with this part of a subject."""
    plain = re.sub(rb"%([0-9A-F]{2})", lambda m: bytes([int(m[1], 16)]), text.encode())
    return plain.decode("utf-8", "replace")


def quote(text: str) -> str:
    """Returns a string literal of Go in ASCII."""
    out = []
    for c in text:
        if c in '"\\':
            out.append("\\" + c)
        elif " " <= c <= "~":
            out.append(c)
        else:
            out.append(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}")
    return '"' + "".join(out) + '"'


_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", '"': '"', "\\": "\\", "'": "'"}


def unquote(text: str) -> str:
    """Returns the text of a string literal of Go. Raises ProtocolError."""
    if not text:
        return ""
    pattern = r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))"
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        raise ProtocolError("a header is no quoted string")

    def plain(m: re.Match[str]) -> str:
        code = m[1] or m[2] or m[3]
        if code:
            return chr(int(code, 16))
        if m[4] not in _ESCAPES:
            raise ProtocolError("a header has an unknown escape")
        return _ESCAPES[m[4]]

    return re.sub(pattern, plain, text[1:-1])
