"""Scalars, keys and names of numpy, enums and classes of programs."""

from __future__ import annotations

import enum
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import sharedtensor as st
from sharedtensor import cbor, frameworks, values
from sharedtensor.endpoints import type_name
from sharedtensor.messages import ErrorMessage
from sharedtensor.wire_errors import exception_of


class Name(str, enum.Enum):
    BASE = "base"


class Number(enum.IntEnum):
    ONE = 1


class Text(str):
    """A subclass of str."""

    def __str__(self) -> str:
        return "another text"


SCALARS: list[tuple[Any, Any]] = [
    (np.int64(3), 3),
    (np.uint8(3), 3),
    (np.float16(0.5), 0.5),
    (np.float32(0.5), 0.5),
    (np.float64(0.5), 0.5),
    (np.longdouble(0.5), 0.5),
    (np.bool_(True), True),
    (np.str_("a"), "a"),
    (np.bytes_(b"a"), b"a"),
    (Name.BASE, "base"),
    (Number.ONE, 1),
    (Text("a"), "a"),
    (bytearray(b"a"), b"a"),
    (memoryview(b"a"), b"a"),
    (True, True),
    (None, None),
]


@pytest.mark.parametrize("given,want", SCALARS, ids=lambda v: type(v).__name__)
def test_scalars_become_python_types(given: Any, want: Any) -> None:
    found = values.plain({"x": [given]})["x"][0]
    assert found == want and type(found) is type(want)
    assert cbor.decode(cbor.encode(found)) == want


@pytest.mark.parametrize("given,want", [p for p in SCALARS if type(p[1]) in (int, str)], ids=lambda v: type(v).__name__)
def test_keys_become_python_types(given: Any, want: Any) -> None:
    [found] = values.plain({given: 1})
    assert found == want and type(found) is type(want)


@pytest.mark.parametrize("key", [1.5, True, None, np.bool_(True), np.float32(1), b"a", (1,)], ids=repr)
def test_keys_of_other_types_are_refused(key: Any) -> None:
    with pytest.raises(st.SerializationError, match="key"):
        values.plain({key: 1})


def test_two_keys_that_become_one_are_refused() -> None:
    class Odd(str):
        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            return self is other

    with pytest.raises(st.SerializationError, match="twice"):
        values.plain({Odd("a"): 1, Odd("a"): 2})


@pytest.mark.parametrize("value", [1j, np.complex64(1), np.datetime64("2026-01-01"), np.void(b"ab"), {1}, object()])
def test_scalars_without_a_type_in_cbor_are_refused(value: Any) -> None:
    if isinstance(value, np.void):
        assert values.plain(value) == b"ab"
        return
    with pytest.raises(st.SerializationError):
        values.plain([value])


def test_calls_accept_numpy_scalars(client: st.Client) -> None:
    x = np.ones(3, np.float32)
    assert client.call("transform", {np.str_("x"): x, Text("scale"): np.float32(2)}).tolist() == [2, 2, 2]
    steps = list(client.stream("spectral_norm", a=np.eye(4, dtype=np.float32), steps=np.int64(2)))
    assert len(steps) == 2


def test_models_accept_numpy_scalars(client: st.Client) -> None:
    version = client.publish(np.str_("scalars"), {np.str_("x"): np.float32(2.5), "n": np.int64(7)})
    w = client.acquire(Text("scalars"), np.int64(version))
    assert w["x"].shape == () and w["x"] == 2.5 and w["x"].dtype == np.float32 and w["n"] == 7
    assert client.acquire(Name.BASE).name == "base"
    assert st.from_array(np.float32(1.5)) == 1.5
    assert st.empty(np.int64(3), framework="numpy").shape == (3,)
    assert st.empty((np.int32(2), 3), framework="numpy").shape == (2, 3)


@pytest.mark.parametrize("order", ["import torch, sharedtensor as st", "import sharedtensor as st, torch"])
def test_the_framework_does_not_depend_on_the_order_of_imports(order: str) -> None:
    pytest.importorskip("torch")
    code = f"{order}\nprint(st.frameworks.choose(None))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout
    assert shown.strip() == "torch"


def test_the_framework_does_not_depend_on_imports() -> None:
    code = "import sharedtensor as st; print(st.frameworks.choose(None))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout
    try:
        import torch  # noqa: F401
    except ImportError:
        assert shown.strip() == frameworks.choose(None) == "numpy"
    else:
        assert shown.strip() == frameworks.choose(None) == "torch"


def test_go_error_texts_are_replaced() -> None:
    late = exception_of(ErrorMessage(code=24, message='endpoint "f": context deadline exceeded'))
    assert isinstance(late, st.DeadlineExceededError) and str(late) == 'endpoint "f": the time of the request is over'
    left = exception_of(ErrorMessage(code=23, message="context canceled"))
    assert isinstance(left, st.CanceledError) and str(left) == "the request was cancelled"
    own = exception_of(ErrorMessage(code=7, message="context canceled"))
    assert str(own) == "context canceled", "what a function says stays"


@pytest.mark.parametrize(
    "go,python",
    [
        ("*tensor.Tensor", "tensor"),
        ("*module.StateDict", "state dict"),
        ("[]*tensor.Tensor", "list[tensor]"),
        ("map[string][]float32", "dict[str, list[float32]]"),
        ("[]uint8", "bytes"),
        ("service.Estimate", "service.Estimate"),
        ("float32", "float32"),
        ("any", "any"),
        ("list[int]", "list[int]"),
    ],
)
def test_types_of_go_are_shown_as_in_python(go: str, python: str) -> None:
    assert type_name(go) == python


def test_endpoints_are_shown_without_go(client: st.Client) -> None:
    shown = repr(client.endpoints())
    assert "a: tensor, steps: int" in shown and "state dict" in shown and "*" not in shown
    with pytest.raises(st.DeadlineExceededError) as caught:
        client.call("build_model", hidden_size=35, layers=1000, pace_ms=100, timeout=0.3)
    assert "context" not in str(caught.value)
