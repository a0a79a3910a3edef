"""Object stores of NATS, in the format of its clients (ADR-20)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import uuid
from datetime import datetime, timezone
from typing import Any

from ..errors import ConnectionLostError, Error, NotFoundError, ProtocolError, UnavailableError
from . import natslink

_CHUNK = 512 << 10  # bytes of one message
_ATTEMPTS = 5  # to find pieces, which a replica may not have yet


class Objects:
    """An object store. Each object has a new name, so its bytes stay the same."""

    def __init__(self, js: Any, bucket: str) -> None:
        self._js = js
        self.bucket = bucket
        self.stream = f"OBJ_{bucket}"

    @classmethod
    async def create(cls, js: Any, bucket: str) -> Objects:
        """Returns an object store, which is created if it is missing."""
        store = cls(js, bucket)
        await natslink.create_stream(js, store.stream, f"$O.{bucket}.C.>", f"$O.{bucket}.M.>", rollup=True)
        return store

    async def put(self, name: str, body: bytes) -> None:
        """Stores an object. Raises UnavailableError if no server answers; what is stored of the object is then removed,
        or has no name."""
        try:
            await self._put(name, body)
        except ConnectionLostError as err:
            with contextlib.suppress(Error):
                await self.delete(name)
            raise UnavailableError(f"the object {name!r} could not be stored: {err}") from err

    async def _put(self, name: str, body: bytes) -> None:
        id, chunks = uuid.uuid4().hex, range(0, len(body), _CHUNK)
        for at in chunks:
            await natslink.publish(self._js, self.stream, self._pieces(id), body[at : at + _CHUNK], {})
        info = {
            "name": name,
            "bucket": self.bucket,
            "nuid": id,
            "size": len(body),
            "chunks": len(chunks),
            "mtime": datetime.now(timezone.utc).isoformat(),
            "digest": _digest(body),
            "options": {"max_chunk_size": _CHUNK},
        }
        subject, headers = self._description(name), {"Nats-Rollup": "sub"}
        await natslink.publish(self._js, self.stream, subject, json.dumps(info).encode(), headers)

    async def get(self, name: str) -> bytes:
        """Returns an object. Raises NotFoundError, or ProtocolError if it is damaged."""
        info = await self._describe(name)
        size, start, missed, pieces = int(info["size"]), 1, 0, bytearray()
        while len(pieces) < size:
            messages, _ = await natslink.read(self._js._nc, self.stream, self._pieces(info["nuid"]), start)
            if not messages:
                if (missed := missed + 1) == _ATTEMPTS:
                    await self._describe(name)  # raises NotFoundError if it was removed meanwhile
                    raise UnavailableError(f"{size - len(pieces)} bytes of the object {name!r} are missing")
                await asyncio.sleep(0.2)
            for message in messages:
                pieces += message.data
                start = int(message.headers["Nats-Sequence"]) + 1
        body = bytes(pieces)
        if len(body) != size or _digest(body) != info.get("digest"):
            raise ProtocolError(f"the object {name!r} is damaged")
        return body

    async def names(self) -> list[str]:
        """Returns the names of all objects."""
        found, start, more = [], 1, True
        while more:
            messages, pending = await natslink.read(self._js._nc, self.stream, f"$O.{self.bucket}.M.>", start)
            for message in messages:
                start = int(message.headers["Nats-Sequence"]) + 1
                with contextlib.suppress(ValueError, KeyError, TypeError):  # written by another program
                    info = json.loads(message.data)
                    if not info.get("deleted"):
                        found.append(str(info["name"]))
            more = pending > 0
        return found

    async def delete(self, name: str) -> None:
        """Removes an object. Nothing happens if there is none."""
        try:
            info = await self._describe(name)
        except NotFoundError:
            return
        # Without a description, a reader finds no object instead of one whose pieces are missing.
        await natslink.purge(self._js, self.stream, self._description(name))
        await natslink.purge(self._js, self.stream, self._pieces(info["nuid"]))

    async def _describe(self, name: str) -> dict[str, Any]:
        messages, _ = await natslink.read(self._js._nc, self.stream, self._description(name))
        info: dict[str, Any] = json.loads(messages[-1].data) if messages else {"deleted": True}
        if info.get("deleted"):
            raise NotFoundError(f"no object {name!r} in {self.bucket}")
        return info

    def _description(self, name: str) -> str:
        return f"$O.{self.bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"

    def _pieces(self, id: str) -> str:
        return f"$O.{self.bucket}.C.{id}"


def _digest(body: bytes) -> str:
    return "SHA-256=" + base64.urlsafe_b64encode(hashlib.sha256(body).digest()).decode()
