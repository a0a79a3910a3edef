"""Checkpoints of torch.distributed.checkpoint in an owner's memory instead of files. It needs torch 2.3.

>>> dcp.save(state_dict, storage_writer=checkpoint.Writer("policy"))     # each rank writes its shards
>>> dcp.load(state_dict, storage_reader=checkpoint.Reader("policy"))     # any version, of any number of ranks

A checkpoint is a version like any other: the shards of a tensor are declared as in `sharedtensor.shards`. So Go
programs and `Client.acquire` read it too, and `Reader` reads versions that were published in another way.
"""

from __future__ import annotations

import io
import json
import os
import time
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from . import shards
from .client import Client, connect
from .errors import ConfigurationError, Error, InvalidArgumentError
from .models import Model

KEY = "sharedtensor.dcp"
"""The key of a checkpoint's metadata: JSON with the tensors that hold other values, and the planner's data."""


class _Place:
    """Where checkpoints are: the owner and the name."""

    def __init__(self, name: str, client: Client[Any] | None, timeout: float | None) -> None:
        self._name = name
        self._client = client
        self._timeout = timeout

    def client(self) -> Client[Any]:
        """Returns the client, connected at its first use."""
        if self._client is None:
            self._client = connect(framework="torch", timeout=self._timeout)
        return self._client

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins another checkpoint, of another name if one is given."""
        if checkpoint_id:
            self._name = os.fspath(checkpoint_id)

    @property
    def checkpoint_id(self) -> str:
        """The name of the version."""
        return self._name

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Reports whether a checkpoint may have this name."""
        return bool(os.fspath(checkpoint_id))


class Writer(_Place, StorageWriter):  # type: ignore[misc, unused-ignore]
    """Writes a checkpoint as the next version of a name.

    Each rank copies its tensors once, into shared memory. The coordinator joins the parts without a copy, so readers
    see all of them or none.

    :ivar version: of the checkpoint that was written last; 0 in other processes than the coordinator.
    """

    def __init__(
        self, name: str, *, client: Client[Any] | None = None, source: str = "", timeout: float | None = None
    ) -> None:
        super().__init__(name, client, timeout)
        self.version = 0
        self._source = source
        self._step = 0
        self._count = 0

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Does nothing: every rank has its own client."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Returns the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Gives each rank its number, the number of ranks, and the number of the checkpoint."""
        self._step, self._count = time.time_ns(), len(plans)
        return [replace(p, storage_data=(rank, self._count, self._step)) for rank, p in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Publishes the part of this rank."""
        if plan.storage_data is None:
            raise ConfigurationError(
                "the plan of this checkpoint has no place: use it with torch.distributed.checkpoint"
            )
        rank, count, step = plan.storage_data
        tensors: dict[str, Any] = {}
        declared: dict[str, shards.Shard] = {}
        results = []
        for item in plan.items:
            key = _free(item.index.fqn, tensors)
            tensors[key] = _value(item, planner)
            name = key
            if item.type == WriteItemType.SHARD:
                chunk = item.tensor_data.chunk
                declared[key] = shards.Shard(tuple(item.tensor_data.size), tuple(chunk.offsets), item.index.fqn)
                name = f"{key}@{rank}"
            size = tensors[key].numel() * tensors[key].element_size()
            results.append(WriteResult(item.index, size, name))
        shards.publish(
            self.client(),
            self._name,
            tensors,
            rank=rank,
            count=count,
            step=step,
            shards=declared,
            timeout=self._timeout,
        )
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: dcp.Metadata, results: list[list[WriteResult]]) -> None:
        """Joins the parts of all ranks to a version. The coordinator calls it."""
        values = [key for key, m in metadata.state_dict_metadata.items() if isinstance(m, dcp.BytesStorageMetadata)]
        about = json.dumps({"bytes": values, "planner": _plain(metadata.planner_data)})
        try:
            self.version = shards.join(
                self.client(),
                self._name,
                count=self._count,
                step=self._step,
                metadata={KEY: about},
                source=self._source,
                timeout=self._timeout,
            )
        except BaseException:
            self._withdraw_parts()
            raise

    def _withdraw_parts(self) -> None:
        """Withdraws the parts of a checkpoint that cannot be joined, as far as that is possible."""
        for rank in range(self._count):
            try:
                self.client().withdraw(shards.part_name(self._name, rank, self._count), timeout=self._timeout)
            except Error:
                pass  # not published, or the owner is gone


class Reader(_Place, StorageReader):  # type: ignore[misc, unused-ignore]
    """Reads a checkpoint, or any published version, into the tensors of a state dict.

    :param version: 0 for the newest.

    Every rank attaches the version and copies what its tensors need. Values that are no tensors are read only if
    ``torch.load(weights_only=True)`` accepts them, so nothing that was received is executed.
    """

    def __init__(
        self, name: str, *, version: int = 0, client: Client[Any] | None = None, timeout: float | None = None
    ) -> None:
        super().__init__(name, client, timeout)
        self._version = version
        self._model: Model[Any] | None = None
        self._names: dict[dcp.MetadataIndex, str] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins another checkpoint, of another name if one is given."""
        super().reset(checkpoint_id)
        self._model = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp.Metadata:
        """Attaches the version, and describes its tensors and their shards."""
        self._model = model = self._attach(self._version)
        about = json.loads(model.metadata.get(KEY, "{}"))
        groups = shards.pieces(model.metadata)
        part_of_group = {piece.name for group in groups.values() for piece in group}
        described: dict[str, Any] = {}
        names: dict[dcp.MetadataIndex, str] = {}
        for key, group in groups.items():
            chunks = [(piece.name, piece.shard.offsets, model.spec(piece.name).shape) for piece in group]
            # Replicas that several ranks have saved count once. A gap would leave the reader's old values there.
            different = {(offsets, shape) for _, offsets, shape in chunks}
            shards.check_cover(key, group[0].shard.shape, sorted(different))
            described[key] = _describe(model, key, group[0].shard.shape, chunks, names)
        for spec in model.specs:
            if spec.name in about.get("bytes", ()):
                described[spec.name] = dcp.BytesStorageMetadata()
                names[dcp.MetadataIndex(spec.name)] = spec.name
            elif spec.name not in part_of_group:
                whole = [(spec.name, (0,) * len(spec.shape), spec.shape)]
                described[spec.name] = _describe(model, spec.name, spec.shape, whole, names)
        return dcp.Metadata(described, _planner(about.get("planner")), {"version": model.version, "names": names})

    def set_up_storage_reader(self, metadata: dcp.Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Attaches the version that the coordinator has described."""
        version = metadata.storage_data["version"]
        self._names = metadata.storage_data["names"]
        if self._model is None or self._model.version != version:
            self._model = self._attach(version)

    def _attach(self, version: int) -> Model[Any]:
        return self.client().acquire(self._name, version, framework="torch", timeout=self._timeout)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Returns the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Returns the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copies what the plan names from the owner's memory."""
        model = self._model
        if model is None:
            raise ConfigurationError("the reader has no version: use it with torch.distributed.checkpoint")
        for item in plan.items:
            tensor = model[self._names[item.storage_index]]
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(_safe(item.storage_index.fqn, tensor)))
                continue
            for dim, (at, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                tensor = tensor.narrow(dim, at, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(tensor)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _free(key: str, taken: dict[str, Any]) -> str:
    """Returns a name for a tensor: that of the state dict, with a number if it has several shards of this rank."""
    if key not in taken:
        return key
    return next(name for i in range(1, len(taken) + 1) if (name := f"{key}+{i}") not in taken)


def _value(item: WriteItem, planner: SavePlanner) -> Any:
    data = planner.resolve_data(item)
    if item.type == WriteItemType.BYTE_IO:
        return torch.frombuffer(bytearray(data.getbuffer()), dtype=torch.uint8)
    return data.detach().cpu()  # parts in host memory can be joined


def _safe(name: str, tensor: Any) -> bytes:
    """Returns the bytes of a value that was saved, if loading them executes nothing."""
    data = tensor.numpy().tobytes()
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception as err:
        raise InvalidArgumentError(f"{name!r} of the checkpoint is no value that can be loaded safely: {err}") from err
    return bytes(data)


def _describe(
    model: Model[Any],
    key: str,
    shape: tuple[int, ...],
    chunks: list[tuple[str, tuple[int, ...], tuple[int, ...]]],
    names: dict[dcp.MetadataIndex, str],
) -> dcp.TensorStorageMetadata:
    made = []
    for name, offsets, sizes in chunks:
        at = torch.Size(offsets)
        names[dcp.MetadataIndex(key, at)] = name
        made.append(dcp.ChunkStorageMetadata(at, torch.Size(sizes)))
    properties = dcp.TensorProperties(dtype=model.spec(chunks[0][0]).dtype.torch)
    return dcp.TensorStorageMetadata(properties, torch.Size(shape), made)


def _plain(data: Any) -> Any:
    """Returns the paths of flattened keys as lists; None for data of another kind."""
    if not isinstance(data, dict) or not all(isinstance(path, tuple) for path in data.values()):
        return None
    return {key: list(path) for key, path in data.items()}


def _planner(data: Any) -> Any:
    return None if data is None else {key: tuple(path) for key, path in data.items()}
