"""Policy gradient (PPO with clipping and generalised advantages) for two actions, with torch if it is installed and
with numpy otherwise."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

GAMMA, LAMBDA, CLIP, ENTROPY, EPOCHS, BATCH, RATE = 0.99, 0.95, 0.2, 0.005, 8, 256, 2.5e-3
WIDTHS = (4, 64, 64)
GOES_ON, FELL = 0, 1

Array = np.ndarray[Any, Any]


@dataclass
class Batch:
    """Training data with one row for each step."""

    observations: Array
    actions: Array
    log_probs: Array
    advantages: Array
    returns: Array

    def minibatches(self, random: np.random.Generator) -> list[Array]:
        """Returns the indices of each minibatch of an epoch."""
        order = random.permutation(len(self.actions))
        return [order[i : i + BATCH] for i in range(0, len(order), BATCH)]


def join(rollouts: list[dict[str, Array]], value: Any) -> Batch:
    """Joins the workers' rollouts into a batch. `value` estimates the returns of observations."""
    parts = []
    for r in rollouts:
        now, after = value(r["observations"]), value(r["next"])
        ends = r["ends"]
        # A fallen pole has no further reward. If the time limit or the rollout ended, the value of the next state
        # counts.
        delta = 1 + GAMMA * after * (ends != FELL) - now
        advantages = np.zeros_like(now)
        running = 0.0
        for i in range(len(now) - 1, -1, -1):
            running = float(delta[i]) + GAMMA * LAMBDA * running * float(ends[i] == GOES_ON)
            advantages[i] = running
        parts.append((r["observations"], r["actions"], r["log_probs"], advantages, advantages + now))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    batch = Batch(*columns)
    batch.advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
    return batch


class NumpyAgent:
    """Actor and critic in numpy, with explicit gradients and Adam."""

    name = "numpy"

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.parameters: dict[str, Array] = {}
        for net, outputs in (("actor", 2), ("critic", 1)):
            widths = (*WIDTHS, outputs)
            for i, (a, b) in enumerate(itertools.pairwise(widths)):
                scale = (0.01 if net == "actor" else 1.0) if i == len(WIDTHS) - 1 else math.sqrt(2)
                q, _ = np.linalg.qr(self.random.standard_normal((max(a, b), min(a, b))))
                self.parameters[f"{net}.{i}.weight"] = np.ascontiguousarray(scale * (q if b >= a else q.T), np.float32)
                self.parameters[f"{net}.{i}.bias"] = np.zeros(b, np.float32)
        self.moments = {k: (np.zeros_like(v), np.zeros_like(v)) for k, v in self.parameters.items()}
        self.steps = 0

    def state_dict(self) -> dict[str, Array]:
        """Returns the parameters by name. The workers use those named actor."""
        return self.parameters

    def _forward(self, net: str, x: Array) -> list[Array]:
        values = [x]
        for i in range(len(WIDTHS)):
            y = values[-1] @ self.parameters[f"{net}.{i}.weight"].T + self.parameters[f"{net}.{i}.bias"]
            values.append(np.tanh(y) if i < len(WIDTHS) - 1 else y)
        return values

    def _backward(self, net: str, values: list[Array], gradient: Array, into: dict[str, Array]) -> None:
        for i in range(len(WIDTHS) - 1, -1, -1):
            if i < len(WIDTHS) - 1:
                gradient = gradient * (1 - values[i + 1] ** 2)
            into[f"{net}.{i}.weight"] = gradient.T @ values[i]
            into[f"{net}.{i}.bias"] = gradient.sum(0)
            gradient = gradient @ self.parameters[f"{net}.{i}.weight"]

    def value(self, observations: Array) -> Array:
        """Returns the estimated return of each observation."""
        return self._forward("critic", observations)[-1][:, 0]

    def learn(self, batch: Batch, rate: float) -> None:
        """Runs the gradient steps for a batch."""
        for _ in range(EPOCHS):
            for rows in batch.minibatches(self.random):
                self._step(batch, rows, rate)

    def _step(self, batch: Batch, rows: Array, rate: float) -> None:
        n = len(rows)
        x, actions, advantages = batch.observations[rows], batch.actions[rows], batch.advantages[rows]
        actor, critic = self._forward("actor", x), self._forward("critic", x)
        logits = actor[-1] - actor[-1].max(1, keepdims=True)
        logp = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        p = np.exp(logp)
        ratio = np.exp(logp[np.arange(n), actions] - batch.log_probs[rows])
        clipped = ((ratio > 1 + CLIP) & (advantages > 0)) | ((ratio < 1 - CLIP) & (advantages < 0))
        weight = np.where(clipped, 0, -advantages * ratio) / n
        one_hot = np.eye(2, dtype=np.float32)[actions]
        entropy = -(p * logp).sum(1, keepdims=True)
        gradients: dict[str, Array] = {}
        self._backward("actor", actor, weight[:, None] * (one_hot - p) + ENTROPY / n * p * (logp + entropy), gradients)
        self._backward("critic", critic, (critic[-1] - batch.returns[rows, None]) / n, gradients)
        self._adam(gradients, rate)

    def _adam(self, gradients: dict[str, Array], rate: float) -> None:
        self.steps += 1
        norm = math.sqrt(sum(float((g**2).sum()) for g in gradients.values()))
        shrink = min(1.0, 0.5 / (norm + 1e-8))
        for name, g in gradients.items():
            first, second = self.moments[name]
            g = g * shrink
            first += 0.1 * (g - first)
            second += 0.001 * (g * g - second)
            step = first / (1 - 0.9**self.steps) / (np.sqrt(second / (1 - 0.999**self.steps)) + 1e-8)
            self.parameters[name] -= (rate * step).astype(np.float32)


class TorchAgent:
    """Actor and critic in torch."""

    name = "torch"

    def __init__(self, seed: int) -> None:
        import torch

        self.torch = torch
        torch.set_num_threads(1)  # the networks are small, and the workers need the other processor
        torch.manual_seed(seed)
        self.random = np.random.default_rng(seed)
        self.actor, self.critic = self._net(2, 0.01), self._net(1, 1.0)
        self.optimizer = torch.optim.Adam([*self.actor.parameters(), *self.critic.parameters()], lr=RATE)

    def _net(self, outputs: int, last: float) -> Any:
        nn = self.torch.nn
        layers = [nn.Linear(a, b) for a, b in zip(WIDTHS, (*WIDTHS[1:], outputs), strict=True)]
        for i, layer in enumerate(layers):
            nn.init.orthogonal_(layer.weight, last if i == len(layers) - 1 else math.sqrt(2))
            nn.init.zeros_(layer.bias)
        return nn.ModuleList(layers)

    def _forward(self, net: Any, x: Any) -> Any:
        for layer in net[:-1]:
            x = layer(x).tanh()
        return net[-1](x)

    def state_dict(self) -> dict[str, Any]:
        """Returns the parameters by name. The workers use those named actor."""
        nets = (("actor", self.actor), ("critic", self.critic))
        return {f"{name}.{key}": value for name, net in nets for key, value in net.state_dict().items()}

    def value(self, observations: Array) -> Array:
        """Returns the estimated return of each observation."""
        with self.torch.no_grad():
            found: Array = self._forward(self.critic, self.torch.as_tensor(np.array(observations)))[:, 0].numpy()
            return found

    def learn(self, batch: Batch, rate: float) -> None:
        """Runs the gradient steps for a batch."""
        torch = self.torch
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        parameters = [*self.actor.parameters(), *self.critic.parameters()]
        columns = [
            torch.as_tensor(c)
            for c in (batch.observations, batch.actions, batch.log_probs, batch.advantages, batch.returns)
        ]
        for _ in range(EPOCHS):
            for rows in batch.minibatches(self.random):
                x, actions, old, advantages, returns = (c[torch.as_tensor(rows)] for c in columns)
                logp = torch.log_softmax(self._forward(self.actor, x), 1)
                ratio = (logp.gather(1, actions[:, None])[:, 0] - old).exp()
                gain = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
                entropy = -(logp.exp() * logp).sum(1).mean()
                value = (self._forward(self.critic, x)[:, 0] - returns).pow(2).mean() / 2
                self.optimizer.zero_grad()
                (value - gain - ENTROPY * entropy).backward()
                torch.nn.utils.clip_grad_norm_(parameters, 0.5)
                self.optimizer.step()


def make(framework: str | None, seed: int) -> NumpyAgent | TorchAgent:
    """Returns an agent for the framework. The default is torch if it is installed, numpy otherwise."""
    if framework != "numpy":
        try:
            return TorchAgent(seed)
        except ImportError:
            if framework == "torch":
                raise
    return NumpyAgent(seed)
