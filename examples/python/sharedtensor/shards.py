"""Versions whose tensors are shards: several processes publish a part each, and one joins the parts without a copy.

>>> shards.publish(c, "policy", local, rank=1, count=4, step=17, shards={"w": Shard((4096, 1024), (1024, 0))})
>>> shards.join(c, "policy", count=4, step=17)       # in one process; readers see all parts or none
>>> local = shards.acquire(c, "policy", rank=1)      # maps only the memory of that part
>>> whole = shards.assemble(c.acquire("policy"), "w")

The parts of a version stay separate slabs. The metadata of the version declares which tensor is which part of a larger
one, so that readers with another number of ranks find the pieces that they need.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from . import catalog, frameworks, manifest, messages, op
from .client import Client
from .errors import CapabilityError, DeadlineExceededError, InvalidArgumentError, NotFoundError
from .frames import close_all
from .importing import device_of
from .memory import Mapping as Memory
from .models import Model, StateDict
from .op import Op
from .operations import Operation

A = TypeVar("A")
KEY = "sharedtensor.shards"
"""The key of a version's metadata: JSON, {tensor: {"shape": [...], "parts": [[name, rank, offsets], ...]}}."""
_PART = "sharedtensor.part"


@dataclass(frozen=True)
class Shard:
    """What a tensor is of a larger one.

    :ivar shape: of the larger tensor.
    :ivar offsets: of the first element there, one for each dimension.
    :ivar of: the name of the larger tensor; "" for the same name. A rank that has several shards of a tensor names it.
    """

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    of: str = ""


@dataclass(frozen=True)
class Piece:
    """A shard in a published version.

    :ivar name: of its tensor in the version.
    :ivar rank: that published it.
    """

    name: str
    rank: int
    shard: Shard


def part_name(name: str, rank: int, count: int) -> str:
    """Returns the name under which a part is published until it is joined."""
    return f"{name}/part {rank} of {count}"


def publish(
    client: Client[Any],
    name: str,
    tensors: Mapping[str, Any],
    *,
    rank: int,
    count: int,
    step: int,
    shards: Mapping[str, Shard] | None = None,
    timeout: float | None = None,
) -> int:
    """Publishes the part of one rank, with one copy as `Client.publish`. Readers of `name` do not see it before `join`.

    :param step: the same number for the parts that belong together.
    :param shards: the tensors that are parts of larger ones. Others are whole, and the lowest rank's is used.
    """
    if not 0 <= rank < count:
        raise InvalidArgumentError(f"rank {rank} of {count}")
    declared = dict(shards or {})
    for key, shard in declared.items():
        if key not in tensors:
            raise InvalidArgumentError(f"the shard {key!r} has no tensor")
        _check(key, shard, tuple(tensors[key].shape))
    about = {key: [list(s.shape), list(s.offsets), s.of] for key, s in declared.items()}
    metadata = {_PART: json.dumps({"step": step, "shards": about})}
    return client.publish(part_name(name, rank, count), tensors, metadata=metadata, timeout=timeout)


def _check(key: str, shard: Shard, shape: tuple[int, ...]) -> None:
    inside = len(shard.shape) == len(shard.offsets) == len(shape) and all(
        0 <= at and at + n <= whole for at, n, whole in zip(shard.offsets, shape, shard.shape, strict=True)
    )
    if not inside:
        raise InvalidArgumentError(f"{key!r} of shape {shape} at {shard.offsets} is not within {shard.shape}")


def join(
    client: Client[Any],
    name: str,
    *,
    count: int,
    step: int,
    metadata: Mapping[str, str] | None = None,
    source: str = "",
    wait: float = 30.0,
    timeout: float | None = None,
) -> int:
    """Makes the parts of a step the next version of `name`, without a copy, and returns it. The parts are withdrawn.

    :param wait: seconds to wait for parts that are not published yet. Raises DeadlineExceededError then.
    """
    until = time.monotonic() + wait
    parts = [_part(client, part_name(name, rank, count), step, until) for rank in range(count)]
    version = client._run(_joined(client, name, parts, dict(metadata or {}), source), timeout=timeout)
    for rank in range(count):
        try:
            client.withdraw(part_name(name, rank, count), timeout=timeout)
        except NotFoundError:
            pass  # another process has
    return version


def _part(client: Client[Any], name: str, step: int, until: float) -> Model[Any]:
    """Waits for the part of a step."""
    after = 0
    with client.follow(name, framework="numpy") as follower:
        while True:
            left = until - time.monotonic()
            if left <= 0:
                raise DeadlineExceededError(f"{name!r} of step {step} was not published in time")
            model = follower.wait_newer(after, timeout=left)
            about = json.loads(model.metadata.get(_PART, "{}"))
            if about.get("step") == step:
                return model
            after = model.version


def _joined(
    client: Client[Any], name: str, parts: list[Model[Any]], metadata: dict[str, str], source: str
) -> Operation[int]:
    device = device_of(client._session(), op.HOST)
    specs: dict[str, manifest.TensorSpec] = {}
    pieces: dict[str, dict[str, Any]] = {}
    storages: list[messages.Storage] = []
    handles: list[messages.Handle] = []
    files: list[int] = []
    try:
        for rank, part in enumerate(parts):
            declared = json.loads(part.metadata[_PART])["shards"]
            for spec in part.specs:
                key = spec.name
                if key in declared:
                    shape, offsets, of = declared[key]
                    entry = pieces.setdefault(of or key, {"shape": shape, "parts": []})
                    if entry["shape"] != shape:
                        raise InvalidArgumentError(f"the parts of {of or key!r} are of tensors with different shapes")
                    key = f"{key}@{rank}"
                    entry["parts"].append([key, rank, offsets])
                if key not in specs:
                    specs[key] = spec._replace(name=key, storage=len(storages) + spec.storage)
            for mapping in part.mappings:
                if not isinstance(mapping, Memory):
                    raise CapabilityError(f"{part.name!r} is on a GPU: parts of host memory can be joined")
                at = len(files)
                files.append(mapping.share())
                handles.append(
                    messages.Handle(
                        kind="memfd", device=device.uuid, nbytes=mapping.nbytes, offset=mapping.file_offset, file=at
                    )
                )
                storages.append(messages.Storage(nbytes=mapping.nbytes, device=device.uuid, type=op.HOST))
        packed = manifest.pack(list(specs.values()), storages, {**metadata, KEY: json.dumps(pieces)})
    except BaseException:
        close_all(files)
        raise
    body = messages.Publish(name=name, manifest=packed, handles=handles, source=source)
    return Operation(
        Op.PUBLISH,
        body,
        lambda frame, _: messages.Published.decode(frame.body).version,
        files=files,
        done=parts.clear,
        about=f"publish {name!r}",
    )


def pieces(metadata: Mapping[str, str]) -> dict[str, list[Piece]]:
    """Returns the shards of each tensor that a version's metadata declares. Raises InvalidArgumentError for metadata
    that is not valid."""
    try:
        declared = json.loads(metadata.get(KEY, "{}"))
        return {
            str(key): [
                Piece(str(name), int(rank), Shard(tuple(map(int, entry["shape"])), tuple(map(int, offsets))))
                for name, rank, offsets in entry["parts"]
            ]
            for key, entry in declared.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise InvalidArgumentError(f"the declaration of shards is not valid: {err}") from err


def acquire(client: Client[A], name: str, rank: int, *, version: int = 0, timeout: float | None = None) -> Model[A]:
    """Attaches to the shards that one rank has published, and to the whole tensors. Only their memory is mapped. The
    names are those of the version: ``w@1`` for the shard of rank 1; `local` has the names of the tensors."""
    about = client.inspect(name, version, timeout=timeout)
    others = {p.name for group in pieces(about.metadata).values() for p in group if p.rank != rank}
    if not any(p.rank == rank for group in pieces(about.metadata).values() for p in group):
        raise NotFoundError(f"{name!r} has no shards of rank {rank}")
    chosen = frameworks.choose(client._framework)
    operation = catalog.acquire(name, version, chosen, client._leases, lambda key: key not in others)
    model: Model[A] = client._run(operation, timeout=timeout)
    return model


def local(model: StateDict[A], rank: int) -> dict[str, A]:
    """Returns the tensors of a rank by their names without the rank: its shards, and the whole tensors."""
    declared = pieces(model.metadata)
    shown = {p.name: key for key, group in declared.items() for p in group if p.rank == rank}
    others = {p.name for group in declared.values() for p in group} - set(shown)
    return {shown.get(name, name): model[name] for name in model if name not in others}


def assemble(model: StateDict[Any], name: str) -> np.ndarray[Any, Any]:
    """Returns a copy of a whole tensor from its shards, as an array of numpy. Raises InvalidArgumentError if shards are
    missing, overlap or do not fit."""
    group = pieces(model.metadata).get(name)
    if group is None:
        raise NotFoundError(f"the version declares no shards of {name!r}")
    if not group or any(piece.name not in model for piece in group):
        raise InvalidArgumentError(f"the model does not have all shards of {name!r}")
    check_cover(name, group[0].shard.shape, [(p.shard.offsets, model.spec(p.name).shape) for p in group])
    dtype = model.spec(group[0].name).dtype
    whole: np.ndarray[Any, Any] = np.empty(group[0].shard.shape, dtype.bits_numpy)
    for piece in group:
        if model.spec(piece.name).dtype != dtype:
            raise InvalidArgumentError(f"the shards of {name!r} are of {dtype} and {model.spec(piece.name).dtype}")
        bits = model.raw(piece.name)
        _check(name, piece.shard, bits.shape)
        whole[tuple(slice(at, at + n) for at, n in zip(piece.shard.offsets, bits.shape, strict=True))] = bits
    return whole.view(dtype.numpy)


def check_cover(name: str, whole: tuple[int, ...], parts: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    """Raises InvalidArgumentError unless parts, each given by its offsets and its shape, have each element of a tensor
    of shape `whole` once."""
    filled = 0
    for i, (offsets, shape) in enumerate(parts):
        _check(name, Shard(whole, offsets), shape)
        filled += manifest.count(shape)
        for others, other in parts[:i]:
            if all(a < b + m and b < a + n for a, n, b, m in zip(offsets, shape, others, other, strict=True)):
                raise InvalidArgumentError(f"two shards of {name!r} overlap: those at {others} and {offsets}")
    if filled != manifest.count(whole):
        raise InvalidArgumentError(f"the shards of {name!r} have {filled} of {manifest.count(whole)} elements")
