"""Functions of Python workers in the Open Inference Protocol of a gateway, over HTTP."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

from conftest import Gateway

WORKER = """
import sys
from typing import Annotated, TypedDict
import numpy as np
import sharedtensor as st

Vector = Annotated[np.ndarray, "float32[-1]"]

class Parts(TypedDict):
    total: Vector
    names: list[str]

def split(x: Vector, tags: list[str], scale: float = 1) -> Parts:
    return {"total": x * np.float32(scale), "names": [t + "!" for t in tags]}

def renamed(x: Vector) -> Parts:
    return {"total": x, "names": []}

with st.connect(sys.argv[1], framework="numpy", wait=20) as c:
    with c.offer(changing=split if True else renamed) as offer:
        print("offered", flush=True)
        offer.wait()
"""


def ask(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=20) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as err:
        return json.load(err)


def test_a_typed_dict_has_several_outputs(own_gateway: Gateway) -> None:
    own_gateway.offer(WORKER)
    url = own_gateway.http + "/v2/models/changing"
    described = ask(url)
    inputs = {t["name"]: (t["datatype"], t["shape"]) for t in described["inputs"]}
    assert inputs == {"x": ("FP32", [-1]), "tags": ("BYTES", [-1]), "scale": ("FP64", [1])}
    outputs = {t["name"]: (t["datatype"], t["shape"]) for t in described["outputs"]}
    assert outputs == {"total": ("FP32", [-1]), "names": ("BYTES", [-1])}

    x = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}
    tags = {"name": "tags", "datatype": "BYTES", "shape": [1, 2], "data": ["a", "b"]}
    answer = ask(url + "/infer", {"inputs": [x, tags], "parameters": {"scale": 2.0}})
    found = {t["name"]: (t["shape"], t["data"]) for t in answer["outputs"]}
    assert found == {"total": ([2], [2, 4]), "names": ([1, 2], ["a!", "b!"])}


def test_a_function_of_the_next_worker_is_described_anew(own_gateway: Gateway) -> None:
    own_gateway.offer(WORKER)
    url = own_gateway.http + "/v2/models/changing"
    assert len(ask(url)["inputs"]) == 3
    own_gateway.end_worker()
    own_gateway.offer(WORKER.replace("if True", "if False"))
    until = time.monotonic() + 30
    while len(ask(url).get("inputs", [])) != 1:
        assert time.monotonic() < until
        time.sleep(0.1)
    x = {"name": "x", "datatype": "FP32", "shape": [1], "data": [3]}
    assert ask(url + "/infer", {"inputs": [x]})["outputs"][0]["data"] == [3]
