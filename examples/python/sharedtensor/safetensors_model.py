"""Models in safetensors files: one file, or several with an index, by the rules of the Go package."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .arrays import Described
from .errors import InvalidArgumentError, NotFoundError
from .safetensors_file import MAX_HEADER, read, read_stored, ties

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_MAX_DEPTH = 32
_SHARD = re.compile(r"(.+)-(\d{1,9})-of-(\d{1,9})\.safetensors", re.DOTALL | re.ASCII)


def read_model(path: str | os.PathLike[str]) -> tuple[dict[str, Described], dict[str, str]]:
    """Maps a model and returns its tensors, as `Client.publish` takes them, and its metadata.

    :param path: a file, an index (a name that ends in .json), or a folder with one of the two.

    The index decides which tensors belong to the model; a warning names others. Raises InvalidArgumentError for files
    that break a rule, and NotFoundError for a folder without a model.
    """
    found = _find(Path(path))
    return _read_shards(found) if found.suffix == ".json" else read(found)


def _find(path: Path) -> Path:
    if not path.is_dir():
        return path
    for name in (FILE, INDEX):
        if (path / name).exists():
            return path / name
    names = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    for suffix in (".safetensors.index.json", ".safetensors"):
        files = [name for name in names if name.endswith(suffix)]
        for name in files:
            match = _SHARD.fullmatch(name)
            if match is not None and int(match[3]) > 1:
                raise InvalidArgumentError(
                    f"{path}: {name} is one of {int(match[3])} files: put {match[1]}.safetensors.index.json beside them"
                )
        if len(files) == 1:
            return path / files[0]
        if files:
            raise InvalidArgumentError(f"{path}: it has {files[0]} and {files[1]}: name one")
    raise NotFoundError(f"{path} has no safetensors file")


def _read_shards(index: Path) -> tuple[dict[str, Described], dict[str, str]]:
    places = read_index(index)
    tensors: dict[str, Described] = {}
    metadata: dict[str, str] = {}
    tied: dict[str, str] = {}
    records: list[tuple[Path, dict[str, str]]] = []
    for shard in sorted(set(places.values())):
        file = index.parent / shard
        if not file.is_file():
            raise InvalidArgumentError(f"{index}: it names {shard}, which is not beside it")
        stored, texts = read_stored(file)
        others = [name for name in stored if places.get(name) != shard]
        if others:
            warnings.warn(
                f"{file}: the index does not place {', '.join(others[:8])} there", RuntimeWarning, stacklevel=3
            )
        tensors.update({name: tensor for name, tensor in stored.items() if places.get(name) == shard})
        metadata = {**texts, **metadata}
        records.append((file, texts))
    missing = next((name for name in places if name not in tensors), None)
    if missing is not None:
        raise InvalidArgumentError(f"{index}: the tensor {missing!r} is not in {places[missing]}")
    for file, texts in records:
        try:
            for name, kept in ties(texts, tensors).items():
                if tied.setdefault(name, kept) != kept:
                    raise ValueError(f"{name!r} is tied to {tied[name]!r} and to {kept!r}")
        except (ValueError, RecursionError) as err:
            raise InvalidArgumentError(f"{file}: {err}") from err
    return {**tensors, **{name: tensors[kept] for name, kept in tied.items()}}, metadata


def read_index(path: Path) -> dict[str, str]:
    """Returns the file of each tensor. Raises InvalidArgumentError for an index that is not valid."""
    if path.stat().st_size > MAX_HEADER:
        raise InvalidArgumentError(f"{path}: an index of more than {MAX_HEADER} bytes")
    try:
        value = json.loads(path.read_bytes().decode(), object_pairs_hook=_Pairs, parse_constant=_refuse)
        _check(value, 0)
        top = _unique("the index", value)
        if "weight_map" not in top:
            raise ValueError("it has no weight_map")
        _unique("metadata", top.get("metadata", _Pairs()))
        places = _unique("weight_map", top["weight_map"])
        for name, file in places.items():
            if not isinstance(file, str) or file in ("", ".", "..") or set(file) & set("/\\:\0"):
                raise ValueError(f"{name!r} is in {file!r}, which is not the plain name of a file")
    except (ValueError, RecursionError) as err:
        raise InvalidArgumentError(f"{path}: this index is not valid: {err}") from err
    return places


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON, with all of its pairs."""


def _unique(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, _Pairs):
        raise ValueError(f"{what} is no object")
    found = dict(value)
    if len(found) != len(value):
        raise ValueError(f"a key of {what} occurs twice")
    return found


def _check(value: Any, depth: int) -> None:
    """Raises ValueError for text that is not Unicode, and for values that nest too deeply."""
    if depth > _MAX_DEPTH:
        raise ValueError("it nests too deeply")
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, list):
        for item in _items(value):
            _check(item, depth + 1)


def _items(value: list[Any]) -> Iterator[Any]:
    for item in value:
        if isinstance(value, _Pairs):
            yield from item
        else:
            yield item


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no number")
