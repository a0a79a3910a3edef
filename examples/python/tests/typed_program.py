"""A program as a user writes it, for type checkers: test_typing.py runs mypy --strict on it."""

from __future__ import annotations

import numpy as np
import torch

import sharedtensor as st


def with_torch(module: torch.nn.Module) -> torch.Tensor:
    with st.connect() as c:
        reveal_type(c)  # sharedtensor.client.Client[torch._tensor.Tensor]
        model = c.acquire("llm", tensors=["w"], wait=1.0)
        reveal_type(model)  # sharedtensor.models.Model[torch._tensor.Tensor]
        reveal_type(model["w"])  # torch._tensor.Tensor
        reveal_type(next(iter(model.items())))  # tuple[str, torch._tensor.Tensor]
        reveal_type(model.get_slice("w")[0:2])  # torch._tensor.Tensor
        reveal_type(model.verify())  # bytes
        reveal_type(st.load_into(module, "llm", client=c, timeout=3.0)["w"])  # torch._tensor.Tensor
        st.swap(module, model)
        with c.create("policy", module.state_dict()) as new:
            reveal_type(new["w"].sum())  # torch._tensor.Tensor
            reveal_type(new.commit(digests=True))  # int
        with c.follow("policy") as f:
            reveal_type(f.wait_newer(3)["w"])  # torch._tensor.Tensor
        reveal_type(st.ones((2, 2)))  # torch._tensor.Tensor
        reveal_type(st.full_like(model["w"], 2))  # torch._tensor.Tensor
        reveal_type(c.acquire("llm", framework="numpy")["w"].dtype.itemsize)  # int
        return model["w"]


def with_numpy() -> int:
    c = st.connect(framework="numpy", timeout=10)
    weight = c.acquire("llm")["w"]
    reveal_type(weight.shape[0])  # int
    reveal_type(st.empty(3, framework="numpy").nbytes)  # int
    reveal_type(c.publish("x", {"w": weight}))  # int
    reveal_type(c.call("transform", x=weight))  # object
    reveal_type(c.options(returns=float).call("norm", x=weight, timeout=3))  # float
    for step in c.options(timeout=5, returns=int).stream("steps"):
        reveal_type(step)  # int
    task = c.submit("train", steps=3)
    reveal_type(task.wait(timeout=5))  # object
    reveal_type(c.stats().publications.reused)  # int
    reveal_type(c.list()[0].name)  # str
    reveal_type(c.inspect("llm").specs[0].shape)  # tuple[int, ...]
    reveal_type(st.is_shared(weight))  # bool

    @c.endpoint
    def scaled(x: np.ndarray, scale: float = 2.0) -> float:
        return float(scale)

    @c.endpoint(cache=True, name="other")
    def count(n: int) -> list[int]:
        return [n]

    reveal_type(scaled(np.ones(3), scale=2.0))  # float
    reveal_type(count(3))  # list[int]
    return c.publish("y", {"w": weight})
