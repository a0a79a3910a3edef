"""The adapters for inference engines work with the engines' code.

SHAREDTENSOR_ENGINES names a folder with the unpacked packages of the engines, without their dependencies. The tests
import modules from there and replace only what those modules import.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Owner

import sharedtensor as st
from sharedtensor.integrations import Source, weights

torch = pytest.importorskip("torch", reason="torch is not installed: no engine is tested")
ENGINES = Path(os.environ.get("SHAREDTENSOR_ENGINES", "/nonexistent"))


def engine(name: str) -> Path:
    """Returns the folder of a package, or skips the test."""
    found = ENGINES / name
    if not found.is_dir():
        pytest.skip(f"{name} is not in SHAREDTENSOR_ENGINES: nothing of it is tested")
    return found


class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A model with the load_weights method of the engines' models."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)

    def load_weights(self, weights: Any) -> None:
        with torch.no_grad():
            for name, tensor in weights:
                self.get_parameter(name).copy_(tensor)


@pytest.fixture
def published(module_owner: Owner) -> Iterator[tuple[str, Net]]:
    net = Net()
    with st.connect(module_owner.socket) as c:
        c.publish("policy", net.state_dict())
        yield module_owner.socket, net


def same(a: Net, b: Net) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_the_message() -> None:
    source = Source("policy", 3, "/x.sock")
    assert Source.parse(source.json()) == source
    for bad in ("", "[]", "{}", '{"model": 3}', '{"model": "x", "version": "y"}'):
        with pytest.raises(st.InvalidArgumentError):
            Source.parse(bad)


def test_sglang_calls_the_loader(published: tuple[str, Net]) -> None:
    from sharedtensor.integrations import sglang

    socket, net = published
    target = Net()
    sglang.load_weights(target, sglang.message("policy", 0, socket))
    assert same(net, target)
    with pytest.raises(st.InvalidArgumentError):
        sglang.load_weights(target, [("other", torch.ones(1))])
    with pytest.raises(st.NotFoundError):
        sglang.load_weights(target, sglang.message("nothing", 0, socket))
    updater = engine("sglang") / "srt/model_executor/model_runner_components/weight_updater.py"
    calls = [
        n
        for n in ast.walk(ast.parse(updater.read_text()))
        if isinstance(n, ast.Call) and ast.unparse(n.func) == "custom_loader"
    ]
    assert [len(c.args) for c in calls] == [2] and ast.unparse(calls[0].args[1]) == "named_tensors"
    assert list(inspect.signature(sglang.load_weights).parameters) == ["model", "named_tensors"]
    assert "load_format in self.custom_weight_loaders" in updater.read_text()
    options = (engine("sglang") / "srt/arg_groups/fields/model.py").read_text()
    assert "custom_weight_loader:" in options


class Stub(types.ModuleType):
    """A module with every attribute. It replaces imports of the engines that the tests do not need."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "instrument":
            return lambda **_: lambda function: function
        value = type(name, (), {})
        setattr(self, name, value)
        return value


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """Imports the vLLM adapter with vLLM's base classes and factory."""
    folder = engine("vllm")
    before = set(sys.modules)
    for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer"):
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        monkeypatch.setitem(sys.modules, name, package)
    for name in (
        "config",
        "config.parallel",
        "config.weight_transfer",
        "config.load",
        "logger",
        "envs",
        "platforms",
        "tracing",
        "utils",
        "utils.mem_utils",
        "utils.torch_utils",
        "model_executor",
        "model_executor.model_loader",
        "model_executor.model_loader.reload",
        "model_executor.model_loader.utils",
    ):
        stub = Stub("vllm." + name)
        stub.__path__ = []
        monkeypatch.setitem(sys.modules, "vllm." + name, stub)
    sys.modules["vllm.logger"].init_logger = lambda _: types.SimpleNamespace(info=print)  # type: ignore[attr-defined]
    sys.modules["vllm.model_executor.model_loader"].__path__ = [str(folder / "model_executor/model_loader")]
    reload = sys.modules["vllm.model_executor.model_loader.reload"]
    for name in ("initialize_layerwise_reload", "finalize_layerwise_reload"):
        setattr(reload, name, lambda *args, name=name: steps.append((name, len(args))))
    registered: dict[str, type] = {}
    loader = sys.modules["vllm.model_executor.model_loader"]
    loader.register_model_loader = lambda name: lambda cls: registered.setdefault(name, cls)  # type: ignore[attr-defined]
    steps: list[tuple[str, int]] = []
    monkeypatch.delitem(sys.modules, "sharedtensor.integrations.vllm", raising=False)
    module = importlib.import_module("sharedtensor.integrations.vllm")
    module.test_steps, module.test_registered = steps, registered  # type: ignore[attr-defined]
    yield module
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_vllm_uses_the_engine(published: tuple[str, Net], vllm: Any) -> None:
    socket, net = published
    vllm.register()
    vllm.register()
    factory = importlib.import_module("vllm.distributed.weight_transfer.factory").WeightTransferEngineFactory
    base = importlib.import_module("vllm.distributed.weight_transfer.base")
    assert base.__file__.startswith(str(ENGINES))
    target = Net()
    config = types.SimpleNamespace(backend="sharedtensor")
    whole = types.SimpleNamespace(parallel_config=None, model_config="config")
    ours = factory.create_engine(config, whole, "cpu", target)
    assert isinstance(ours, base.WeightTransferEngine) and not vllm.SharedTensorEngine.__abstractmethods__
    with pytest.raises(st.ConfigurationError):
        ours.receive_weights(ours.parse_update_info({"model": "policy"}))
    ours.init_transfer_engine(ours.parse_init_info({"socket": socket}))
    ours.start_weight_update()
    ours.receive_weights(ours.parse_update_info({"model": "policy", "version": 0}))
    ours.finish_weight_update()
    assert same(net, target)
    assert vllm.test_steps == [("initialize_layerwise_reload", 1), ("finalize_layerwise_reload", 2)]
    with pytest.raises(ValueError, match="Invalid update_info"):
        ours.parse_update_info({"weights": 1})
    ours.shutdown()
    ours.shutdown()
    for name in (
        "init_transfer_engine",
        "start_weight_update",
        "receive_weights",
        "finish_weight_update",
        "shutdown",
        "__init__",
    ):
        theirs, mine = getattr(base.WeightTransferEngine, name), getattr(vllm.SharedTensorEngine, name)
        assert list(inspect.signature(theirs).parameters) == list(inspect.signature(mine).parameters), name


def test_vllm_uses_the_loader(published: tuple[str, Net], vllm: Any) -> None:
    socket, net = published
    vllm.register()
    cls = vllm.test_registered["sharedtensor"]
    base = importlib.import_module("vllm.model_executor.model_loader.base_loader").BaseModelLoader
    assert issubclass(cls, base) and not cls.__abstractmethods__
    for name in ("download_model", "load_weights"):
        assert list(inspect.signature(getattr(base, name)).parameters) == list(
            inspect.signature(getattr(cls, name)).parameters
        )
    target = Net()
    loader = cls(types.SimpleNamespace(model_loader_extra_config={"model": "policy", "socket": socket}))
    loader.download_model(None)
    loader.load_weights(target, None)
    assert same(net, target)
    with pytest.raises(st.ConfigurationError):
        cls(types.SimpleNamespace(model_loader_extra_config={})).load_weights(target, None)


def test_checkpoint_engine_receiver_accepts_the_sender(
    published: tuple[str, Net], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zmq = pytest.importorskip("zmq", reason="pyzmq is not installed: checkpoint-engine is not tested")
    pytest.importorskip("loguru", reason="loguru is not installed: checkpoint-engine is not tested")
    package = engine("checkpoint_engine")
    if not hasattr(torch.float32, "itemsize"):
        pytest.skip("checkpoint-engine needs torch 2.5")
    stub = types.ModuleType("checkpoint_engine")
    stub.__path__ = [str(package)]
    monkeypatch.setitem(sys.modules, "checkpoint_engine", stub)
    worker = importlib.import_module("checkpoint_engine.worker")
    assert worker.__file__.startswith(str(ENGINES))
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    device = types.SimpleNamespace(synchronize=nothing, ipc_collect=nothing, empty_cache=nothing)
    monkeypatch.setattr(worker, "DeviceManager", lambda: types.SimpleNamespace(device_module=device))  # there is no GPU
    from sharedtensor.integrations.checkpoint_engine import Sender

    socket, net = published
    target = Net()
    places: list[int] = []
    hooks: list[bool] = []

    def run(received: list[tuple[str, Any]]) -> None:
        places.extend(tensor.data_ptr() for _, tensor in received)
        target.load_weights(received)

    address = f"ipc://{folder}/zmq.sock"
    context = zmq.Context()
    receive = {"run": run, "post_hook": lambda: hooks.append(True)}
    thread = threading.Thread(target=worker.update_weights_from_ipc, args=(context, address, 0), kwargs=receive)
    thread.start()
    with Sender(address, timeout=20) as sender:
        sender.send(Source("policy", 0, socket))
    thread.join(20)
    assert same(net, target) and hooks == [True] and len(places) == 2 and places[1] - places[0] < 4096
    context.term()


def test_weights_without_a_client(published: tuple[str, Net]) -> None:
    socket, net = published
    assert {name for name, _ in weights(Source("policy", socket=socket))} == set(net.state_dict())
