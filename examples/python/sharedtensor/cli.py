"""The command line: ``python -m sharedtensor ls|inspect|get|put``. The Go command has more of it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from . import safetensors_file, safetensors_model, tables
from .client import Client, connect
from .errors import ConfigurationError, Error, InvalidArgumentError
from .message import Message


def main(arguments: list[str] | None = None) -> int:
    """Runs a command. Returns the exit status: 0, 1 after an error, 2 for a wrong command line, 130 after ^C."""
    options = _parser().parse_args(arguments)
    try:
        with connect(options.socket, framework="numpy", timeout=60) as client:
            options.run(client, options)
        sys.stdout.flush()
    except BrokenPipeError:  # such as of `ls | head -1`
        # Python flushes once more at exit, and would print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
        return 1
    except (Error, OSError) as err:
        print(f"sharedtensor: {tables.clean(str(err))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sharedtensor",
        description="List, inspect, download and publish models of this host's owner.",
    )
    parser.add_argument(
        "--socket",
        help="the owner's socket (default: $SHARED_TENSOR_BASE_PATH-0.sock, or the one in the runtime directory)",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    ls = commands.add_parser("ls", help="list what is published, and who holds it")
    ls.set_defaults(run=_ls)
    inspect = commands.add_parser("inspect", help="show the tensors of a model")
    inspect.add_argument("name")
    inspect.set_defaults(run=_inspect)
    get = commands.add_parser("get", help="attach a model and write it to a safetensors file")
    get.add_argument("name", help="NAME, or NAME@VERSION")
    get.add_argument("-o", "--output", help="the file (default: NAME.safetensors)")
    get.set_defaults(run=_get)
    put = commands.add_parser(
        "put", help="publish files: .safetensors, their index or folder, .npz, or .pt with tensors"
    )
    put.add_argument("models", nargs="+", metavar="NAME=FILE")
    put.set_defaults(run=_put)
    seed = commands.add_parser("seed", help="load a model with an engine's loader and publish it for its engines")
    seed.add_argument("engine", choices=["vllm"])
    seed.add_argument("model", help="what the engine loads, such as a folder with a checkpoint")
    seed.add_argument("--as", dest="name", required=True, metavar="NAME", help="the name to publish")
    seed.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the engine that decides the layout, such as dtype=bfloat16; VALUE is JSON or a text",
    )
    seed.set_defaults(run=_seed)
    for each in (ls, inspect, get, put, seed):
        each.add_argument("--json", action="store_true", help="print JSON for programs")
        each.add_argument("--socket", default=argparse.SUPPRESS, help=argparse.SUPPRESS)  # also after the command
    return parser


def _show(options: argparse.Namespace, value: Any, text: str) -> None:
    print(json.dumps(value, default=_jsonable, ensure_ascii=False) if options.json else text)


def _jsonable(value: Any) -> Any:
    if isinstance(value, Message):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}  # type: ignore[arg-type]
    return value.hex() if isinstance(value, bytes) else str(value)


def _ls(client: Client[Any], options: argparse.Namespace) -> None:
    models = client.list()
    _show(options, list(models), str(models.table()) if models else "nothing is published")


def _inspect(client: Client[Any], options: argparse.Namespace) -> None:
    found = client.inspect(options.name)
    tensors = [
        {
            "name": s.name,
            "dtype": str(s.dtype),
            "shape": s.shape,
            "bytes": s.nbytes,
            "storage": s.storage,
            "offset": s.offset,
        }
        for s in found.specs
    ]
    _show(options, {"model": found.model, "metadata": found.metadata, "tensors": tensors}, repr(found))


def _get(client: Client[Any], options: argparse.Namespace) -> None:
    name, _, version = options.name.partition("@")
    if version and not version.isdigit():
        raise InvalidArgumentError(f"{options.name}: the version {version!r} is no number")
    model = client.acquire(name, int(version or 0))
    path = options.output or f"{name.replace('/', '_')}.safetensors"
    begin = time.monotonic()
    size = safetensors_file.write(path, model)
    seconds = time.monotonic() - begin
    text = f"{path}: {name} version {model.version}, {len(model)} tensors, {tables.size(size)} in {seconds:.1f} s"
    _show(options, {"file": path, "name": name, "version": model.version, "tensors": len(model), "bytes": size}, text)


def _put(client: Client[Any], options: argparse.Namespace) -> None:
    for pair in options.models:
        name, separator, path = pair.partition("=")
        if not separator or not name or not path:
            raise InvalidArgumentError(f"{pair}: write NAME=FILE")
        tensors, metadata = read_file(path)
        version = client.publish(name, tensors, source=path, metadata=metadata)
        text = f"{name} version {version}: {len(tensors)} tensors of {path}"
        _show(options, {"name": name, "version": version, "tensors": len(tensors), "source": path}, text)


def _seed(client: Client[Any], options: argparse.Namespace) -> None:
    try:
        from .integrations.vllm.seeder import seed
    except ImportError as err:
        raise ConfigurationError(f"{options.engine} cannot be loaded here: {err}") from err
    settings = {}
    for pair in options.settings:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise InvalidArgumentError(f"{pair}: write KEY=VALUE")
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value
    begin = time.monotonic()
    found = seed(client, options.model, options.name, settings)
    seconds = time.monotonic() - begin
    for each in found:
        size = tables.size(each.nbytes)
        text = f"{each.name} version {each.version}: {each.tensors} tensors, {size} in {seconds:.1f} s"
        _show(options, {**dataclasses.asdict(each), "seconds": round(seconds, 3)}, text)


def read_file(path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the tensors of a file and its metadata. Executes nothing in a file. Raises InvalidArgumentError for an
    unknown kind, and for a file that does not have the format of its suffix."""
    suffix = Path(path).suffix
    if suffix in (".safetensors", ".json") or Path(path).is_dir():
        tensors, metadata = safetensors_model.read_model(path)
        return dict(tensors), metadata
    read = {".npz": _read_npz, ".pt": _read_pt, ".pth": _read_pt, ".bin": _read_pt}.get(suffix)
    if read is None:
        raise InvalidArgumentError(f"{path}: files of the kinds .safetensors, .npz and .pt can be published")
    try:
        return read(path), {}
    except (Error, OSError):
        raise
    except Exception as err:  # a damaged file makes these readers raise almost any class
        raise InvalidArgumentError(f"{path}: this {suffix} file cannot be read: {err or type(err).__name__}") from err


def _read_npz(path: str) -> dict[str, Any]:
    arrays = np.load(path, allow_pickle=False)
    if not isinstance(arrays, np.lib.npyio.NpzFile):
        raise InvalidArgumentError(f"{path} is a single array: write it with numpy.savez, which gives it a name")
    with arrays:
        return dict(arrays)


def _read_pt(path: str) -> dict[str, Any]:
    from .frameworks import torch

    found = torch().load(path, map_location="cpu", weights_only=True)
    if not isinstance(found, dict):
        raise InvalidArgumentError(f"{path} has no state dict but a {type(found).__name__}")
    return found
