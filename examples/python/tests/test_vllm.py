"""The parts of the vLLM integration that need no engine: attaching a module, switching it, keys and deltas.

`.ci/engines` runs real engines.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Owner

import sharedtensor as st

torch = pytest.importorskip("torch", minversion="2.0", reason="torch 2 is not installed: vLLM's modules are not tested")
from torch import nn  # noqa: E402

from sharedtensor.integrations import attached, fingerprint  # noqa: E402
from sharedtensor.integrations.vllm import deltas  # noqa: E402

KEY = {"dtype": "torch.bfloat16", "model_arch": "Net", "checkpoint": "abc"}


class Layer(nn.Module):  # type: ignore[misc]
    """A layer with what vLLM's layers have: parameters with attributes, buffers, tensors that are plain attributes."""

    def __init__(self, fill: float) -> None:
        super().__init__()
        fill = float(fill)
        self.weight = nn.Parameter(torch.full((8, 4), fill, dtype=torch.bfloat16), requires_grad=False)
        self.weight.output_dim = 0
        self.register_buffer("scale", torch.full((), fill), persistent=False)
        self.scale_cpu = torch.tensor(fill)


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self, fill: float = 0.0) -> None:
        super().__init__()
        self.embed = Layer(fill)
        self.layers = nn.ModuleList([Layer(fill + 1), Layer(fill + 2)])
        self.head = nn.Module()
        self.head.weight = self.embed.weight  # tied


def empty() -> Net:
    with torch.device("meta"):
        return Net()


@pytest.fixture
def client(module_owner: Owner) -> Iterator[st.Client[Any]]:
    with st.connect(module_owner.socket, framework="torch") as c:
        yield c


def publish(client: st.Client[Any], name: str, fill: float, net: nn.Module | None = None, **other: Any) -> int:
    tensors = attached.export(net or Net(fill))
    return int(client.publish(name, tensors, metadata=fingerprint.metadata({**KEY, **other})))


def attach(client: st.Client[Any], name: str) -> tuple[Net, attached.Attached]:
    net = empty()
    found = attached.Attached(client, client.acquire(name), KEY)
    assert found.attach(net) == 3
    return net, found


def values(net: Net) -> list[float]:
    return [float(layer.weight[3, 2]) for layer in (net.embed, *net.layers)]


def test_attach(client: st.Client[Any]) -> None:
    publish(client, "attach", 5)
    net, found = attach(client, "attach")
    assert values(net) == [5, 6, 7] and float(net.layers[1].scale) == 7 and float(net.layers[0].scale_cpu) == 6
    assert net.head.weight is net.embed.weight and net.embed.weight.output_dim == 0
    assert st.is_shared(net.layers[0].weight) and not st.is_shared(net.layers[0].scale)
    assert attached.find(net) is found and attached.find(Net()) is None
    assert "scale" not in net.state_dict()


def test_a_module_that_does_not_fit_is_refused(client: st.Client[Any]) -> None:
    publish(client, "fit", 5)
    larger = empty()
    with torch.device("meta"):
        larger.layers.append(Layer(0))
    with pytest.raises(st.IncompatibleError, match=r"lacks layers\.2\.weight"):
        attached.Attached(client, client.acquire("fit"), KEY).attach(larger)
    other = empty()
    other.embed.weight = nn.Parameter(torch.empty(4, 8, device="meta"), requires_grad=False)
    with pytest.raises(st.IncompatibleError, match=r"embed\.weight of 'fit' version 1 is"):
        attached.Attached(client, client.acquire("fit"), KEY).attach(other)


def test_switch_keeps_addresses(client: st.Client[Any]) -> None:
    publish(client, "switch", 5)
    net, found = attach(client, "switch")
    first = client.acquire("switch", 1)
    parameters, places = list(net.parameters()), [p.data_ptr() for p in net.parameters()]
    scale = net.layers[1].scale
    net.layers[0].weight[0, 0] = 99  # a write of this process to its private page
    version = publish(client, "switch", 20, checkpoint="another")
    assert found.switch("switch", 0) == version == found.version
    assert values(net) == [20, 21, 22] and float(net.layers[0].weight[0, 0]) == 21
    assert float(scale) == 22 and net.layers[1].scale is scale
    assert [p.data_ptr() for p in net.parameters()] == places
    assert all(a is b for a, b in zip(net.parameters(), parameters, strict=True))
    assert found.switch("switch", 1) == 1 and values(net) == [5, 6, 7], "an earlier version"
    assert first.stale == ""


def test_switch_to_another_place_in_memory(client: st.Client[Any]) -> None:
    publish(client, "place", 5)
    net, found = attach(client, "place")
    parameters = list(net.parameters())
    tensors = attached.export(Net(30))
    version = client.publish("place", dict(reversed(tensors.items())), metadata=fingerprint.metadata(KEY))
    assert found.switch("place", 0) == version
    assert values(net) == [30, 31, 32] and net.head.weight is net.embed.weight
    assert all(a is b for a, b in zip(net.parameters(), parameters, strict=True))


def test_a_switch_that_does_not_fit_changes_nothing(client: st.Client[Any]) -> None:
    publish(client, "refuse", 5)
    net, found = attach(client, "refuse")
    publish(client, "refuse", 6, dtype="torch.float16")
    with pytest.raises(st.IncompatibleError, match=r"dtype is 'torch\.float16', the engine's is 'torch\.bfloat16'"):
        found.switch("refuse", 0)
    client.publish("refuse", {"w": torch.zeros(3)})
    with pytest.raises(st.IncompatibleError, match="is not in the layout of an engine: publish it with"):
        found.switch("refuse", 0)
    smaller = Net(9)
    del smaller.layers[1]
    publish(client, "refuse", 9, smaller)
    with pytest.raises(st.IncompatibleError, match=r"lacks layers\.1\.weight"):
        found.switch("refuse", 0)
    with pytest.raises(st.NotFoundError):
        found.switch("unknown", 0)
    assert values(net) == [5, 6, 7] and found.version == 1


def test_sleep_and_wake(client: st.Client[Any]) -> None:
    publish(client, "sleep", 5)
    net, found = attach(client, "sleep")
    found.sleep()
    found.wake()
    assert values(net) == [5, 6, 7]


def test_a_damaged_key_is_refused(client: st.Client[Any]) -> None:
    for text in ("", "[]", "3", '{"dtype"'):
        client.publish("damaged", {"w": torch.zeros(1)}, metadata={fingerprint.METADATA: text})
        with pytest.raises(st.IncompatibleError):
            fingerprint.check(client.acquire("damaged"), KEY)


@pytest.fixture
def patches() -> Iterator[Any]:
    """vLLM's module of patches, of an installed vLLM or from its unpacked files, because it needs only torch."""
    if importlib.util.find_spec("vllm") is not None:
        yield importlib.import_module("vllm.model_executor.model_loader.checkpoint_weight_patch")
        return
    folder = Path(os.environ.get("SHAREDTENSOR_ENGINES", "/nonexistent")) / "vllm"
    if not folder.is_dir():
        pytest.skip("vllm is not in SHAREDTENSOR_ENGINES: its patches are not tested")
    before = set(sys.modules)
    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.model_loader"):
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    yield importlib.import_module("vllm.model_executor.model_loader.checkpoint_weight_patch")
    for name in set(sys.modules) - before:
        del sys.modules[name]


class Checkpoint(nn.Module):  # type: ignore[misc]
    """A model with the load_weights method of vLLM's models."""

    def __init__(self, state: dict[str, Any]) -> None:
        super().__init__()
        self.state = {name: tensor.clone() for name, tensor in state.items()}

    def load_weights(self, weights: Any) -> set[str]:
        names = set()
        for name, tensor in weights:
            self.state[name].copy_(tensor)
            names.add(name)
        return names


def test_a_delta_gives_the_new_weights(client: st.Client[Any], patches: Any) -> None:
    old = {"a": torch.randn(30, 5), "b": torch.randn(4, dtype=torch.float64), "c": torch.ones(3)}
    new = {name: tensor.clone() for name, tensor in old.items()}
    new["a"][3, 1], new["a"][29, 4], new["b"][0] = 7.0, -1.0, 2.0
    tensors, metadata = deltas.delta(old, new)
    assert sum(t.nbytes for t in tensors.values()) < 40
    client.publish("delta", tensors, metadata=metadata)
    module = Checkpoint(old)
    deltas.apply(module, client.acquire("delta"))
    assert all(torch.equal(module.state[name], new[name]) for name in new)


def test_deltas_that_cannot_be_made(client: st.Client[Any]) -> None:
    old = {"a": torch.zeros(3)}
    for new in ({"b": torch.zeros(3)}, {"a": torch.zeros(4)}, {"a": torch.zeros(3, dtype=torch.int32)}, old):
        with pytest.raises(st.InvalidArgumentError):
            deltas.delta(old, new)
    with pytest.raises(st.InvalidArgumentError, match="NaN"):
        deltas.delta(old, {"a": torch.full((3,), float("nan"))})


def test_a_damaged_delta_is_refused(client: st.Client[Any], patches: Any) -> None:
    for text in ("", "[]", '{"a": [[3], "nothing"]}', '{"b": [[3], "float32"]}', '{"a": 3}'):
        client.publish("bad", {"a": torch.zeros(1)}, metadata={deltas.METADATA: text})
        with pytest.raises(st.InvalidArgumentError):
            deltas.apply(Checkpoint({}), client.acquire("bad"))


@pytest.fixture
def registered() -> None:
    """Registers the integration in an installed vLLM, as its plugins are."""
    pytest.importorskip("vllm", reason="vLLM is not installed: its factories and quantised layers are not tested")
    from sharedtensor.integrations import vllm

    vllm.register()
    vllm.register()


def test_vllm_finds_what_is_registered(registered: None) -> None:
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.model_loader import get_model_loader

    from sharedtensor.integrations.vllm import loader, sleep, transfer

    config = types.SimpleNamespace(load_format="sharedtensor", model_loader_extra_config={"model": "llm"}, device=None)
    assert type(get_model_loader(config)) is loader.SharedTensorLoader
    assert WeightTransferEngineFactory._registry["sharedtensor"]() is transfer.SharedTensorEngine
    assert SleepModeBackendFactory.get_backend_class("sharedtensor") is sleep.SharedTensorSleep
    config.model_loader_extra_config = {"model": "llm", "path": "/x"}
    with pytest.raises(st.ConfigurationError):
        get_model_loader(config)


def test_layers_that_transform_weights_are_refused(registered: None) -> None:
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

    from sharedtensor.integrations.vllm.loader import refuse_transforms

    def method(name: str, **attributes: Any) -> Any:
        made = type(name, (QuantizeMethodBase,), {"create_weights": None, "apply": None, **attributes})
        return made()

    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    layer = nn.Linear(2, 2)
    layer.quant_method = method("UnquantizedLinearMethod")
    refuse_transforms(layer, cpu)
    layer.quant_method = method("Fp8LinearMethod", supports_pre_processed_weights=True)
    refuse_transforms(layer, cuda)
    with pytest.raises(st.CapabilityError, match="uses Fp8LinearMethod, which transforms weights"):
        refuse_transforms(layer, cpu)
    layer.quant_method = method("GPTQLinearMethod", supports_pre_processed_weights=False)
    with pytest.raises(st.CapabilityError, match="GPTQLinearMethod"):
        refuse_transforms(layer, cuda)


def test_sleep_unmaps_weights(registered: None, client: st.Client[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm.device_allocator

    from sharedtensor.integrations.vllm.sleep import SharedTensorSleep

    publish(client, "asleep", 5)
    net, _ = attach(client, "asleep")
    steps: list[Any] = []
    allocator = types.SimpleNamespace(sleep=lambda **_: steps.append("sleep"), wake_up=steps.append)
    monkeypatch.setattr(vllm.device_allocator, "get_mem_allocator_instance", lambda: allocator)
    address = net.embed.weight.data_ptr()

    def readable() -> bool:
        with open("/proc/self/maps") as maps:
            for line in maps:
                low, high = (int(part, 16) for part in line.split()[0].split("-"))
                if low <= address < high:
                    return line.split()[1].startswith("r")
        return False

    backend = SharedTensorSleep()
    assert readable()
    backend.suspend(1)
    assert not readable() and steps == ["sleep"] and backend.state() == "SUSPENDED"
    backend.resume(["kv_cache"])
    assert not readable()
    backend.resume(["weights"])
    assert readable() and values(net) == [5, 6, 7] and backend.state() == "RUNNING"


class Scaled(Net):
    """A model with tensors that are plain attributes: on "meta" or not when the engine makes it."""

    def __init__(self, fill: float = 0.0) -> None:
        super().__init__(fill)
        self.scale = torch.full((3,), fill)
        with torch.device("cpu"):
            self.made = torch.full((2,), fill)


def test_plain_attributes_have_the_values_of_the_version(client: st.Client[Any]) -> None:
    publish(client, "scaled", 1.0, net=Scaled(1.0))
    with torch.device("meta"):
        net = Scaled()
    found = attached.Attached(client, client.acquire("scaled"), KEY)
    found.attach(net)
    assert net.scale.tolist() == [1.0] * 3 and net.made.tolist() == [1.0] * 2
    kept = net.scale
    publish(client, "scaled", 2.0, net=Scaled(2.0))
    found.switch("scaled", 2)
    assert net.scale is kept
    assert net.scale.tolist() == [2.0] * 3 and net.made.tolist() == [2.0] * 2
    assert float(net.layers[0].scale_cpu) == 3
    publish(client, "scaled", 3.0, net=Net(3.0))
    with pytest.raises(st.IncompatibleError, match="scale"):
        found.switch("scaled", 3)
    assert found.version == 2 and net.scale.tolist() == [2.0] * 3
    publish(client, "scaled", 4.0, net=Scaled(4.0))
    del net.made
    with pytest.raises(st.IncompatibleError, match="made"):
        found.switch("scaled", 4)
    assert values(net)[0] == 2
