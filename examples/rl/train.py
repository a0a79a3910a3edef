"""A trainer in Python and three rollout workers in Go, which read its weights in place.

    go build -o /tmp/rl/ ./cmd/sharedtensor ./examples/rl/worker
    python examples/rl/train.py --programs /tmp/rl

In each step the trainer publishes its parameters. The workers play cart and pole with them and publish their
observations as shared tensors. One worker is killed and started again. Training ends when the mean reward of the last
hundred episodes is above the goal.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

# The networks are small, so more threads for linear algebra would only slow down the workers. numpy reads these
# variables when it is imported.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import agents  # noqa: E402
import numpy as np  # noqa: E402

import sharedtensor as st  # noqa: E402
from sharedtensor import memory  # noqa: E402

KEYS = ("observations", "next", "actions", "log_probs", "ends")


class Workers:
    """The processes of the rollout workers, and followers of their rollouts."""

    def __init__(self, client: st.Client, program: Path, count: int, steps: int) -> None:
        self.client = client
        self.program = program
        self.steps = steps
        self.processes = [self._start(i) for i in range(count)]
        self.followers = [client.follow(f"rollout-{i}", framework="numpy") for i in range(count)]
        self.seen = [0] * count

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([self.program, self.client.path, str(number), str(self.steps)])

    def alive(self) -> list[int]:
        """Returns the numbers of the running workers."""
        return [i for i, p in enumerate(self.processes) if p.poll() is None]

    def kill(self, number: int) -> None:
        """Kills a worker with SIGKILL, as the OOM killer does."""
        self.processes[number].send_signal(signal.SIGKILL)
        self.processes[number].wait()

    def start(self, number: int) -> None:
        """Starts a killed worker again."""
        self.processes[number] = self._start(number)

    def collect(self, patience: float) -> list[st.Model]:
        """Returns the new rollout of each worker. Waits for running workers, for up to `patience` seconds."""
        if not self.alive():
            raise SystemExit("all workers have ended; their errors are printed above")
        until = time.monotonic() + patience
        found: list[st.Model] = []
        for i in self.alive():
            while not self.seen[i] or self.processes[i].poll() is None:
                left = min(until - time.monotonic(), 0.2)
                try:
                    model = self.followers[i].wait_newer(self.seen[i], timeout=max(left, 0.001))
                except st.DeadlineExceededError:
                    if time.monotonic() < until and self.processes[i].poll() is None:
                        continue
                    break
                self.seen[i] = model.version
                found.append(model)
                break
        return found

    def close(self) -> None:
        """Stops all workers."""
        for follower in self.followers:
            follower.close()
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()


class Report:
    """Prints a line of statistics every two seconds."""

    HEAD = (
        f"{'seconds':>7} {'version':>7} {'per s':>6} {'reward':>6} {'workers':>7} {'publish → worker':>17} "
        f"{'in place':>9} {'copied':>6}"
    )

    def __init__(self) -> None:
        self.begin = self.last = time.monotonic()
        self.lengths: deque[float] = deque(maxlen=100)
        self.latencies: list[float] = []
        self.versions = self.at_last = 0
        self.in_place = self.copied = 0
        print(self.HEAD, flush=True)

    def add(self, model: st.Model) -> None:
        """Counts the episodes of a rollout, and its bytes that were shared and copied."""
        for name in model:
            array = model[name]
            shared = memory.find(array.__array_interface__["data"][0], array.nbytes) is not None
            self.in_place += array.nbytes if shared else 0
            self.copied += 0 if shared else array.nbytes
        self.latencies.append(model["facts"][1] / 1e3)
        lengths = model["lengths"]
        self.lengths.extend(float(n) for n in lengths[lengths > 0])

    @property
    def reward(self) -> float:
        """The mean reward of the last hundred episodes."""
        return float(np.mean(self.lengths)) if self.lengths else 0.0

    def line(self, version: int, workers: int, *, now: bool = False) -> None:
        """Prints a line if two seconds have passed or `now` is set."""
        seconds = time.monotonic() - self.last
        if seconds < 2 and not now:
            return
        rate = (self.versions - self.at_last) / max(seconds, 1e-9)
        p50 = f"{np.median(self.latencies):.0f} µs" if self.latencies else "-"
        print(
            f"{time.monotonic() - self.begin:7.1f} {version:7d} {rate:6.1f} {self.reward:6.1f} {workers:7d} {p50:>17} "
            f"{self.in_place / 1e6:6.1f} MB {self.copied:4d} B",
            flush=True,
        )
        self.last, self.at_last = time.monotonic(), self.versions
        self.latencies.clear()


def train(client: st.Client, options: argparse.Namespace) -> dict[str, Any]:
    """Trains until the goal is reached and a worker was killed and started again, or the time is over. Returns the
    results."""
    agent = agents.make(options.framework, options.seed)
    print(f"training with {agent.name}; the {options.workers} workers are Go processes")
    report = Report()
    at = np.zeros(1, np.int64)

    def publish() -> int:
        at[0] = time.time_ns()
        report.versions += 1
        return client.publish("policy", {**agent.state_dict(), "published_at": at}, source="examples/rl/train.py")

    version = publish()
    workers = Workers(client, options.programs / "worker", options.workers, options.steps)
    killed = returned = 0.0
    try:
        while report.reward <= options.goal or (not returned and options.kill_after < options.seconds):
            if time.monotonic() - report.begin >= options.seconds:
                break
            models = workers.collect(patience=2)
            for model in models:
                report.add(model)
            if models:
                rollouts = [{key: model[key] for key in KEYS} for model in models]
                rate = agents.RATE * max(1 - report.reward / 600, 0.1)
                agent.learn(agents.join(rollouts, agent.value), rate)
            version = publish()
            seconds = time.monotonic() - report.begin
            if not killed and seconds > options.kill_after:
                workers.kill(1)
                killed = seconds
                print(f"{seconds:7.1f} worker 1 is killed (SIGKILL)")
            elif killed and not returned and seconds > killed + 1:
                workers.start(1)
                workers.seen[1] = workers.followers[1].newest
                returned = seconds
                print(f"{seconds:7.1f} worker 1 is started again")
            report.line(version, len(models))
    finally:
        workers.close()
    report.line(version, len(workers.processes), now=True)
    pool = client._pool
    return {
        "framework": agent.name,
        "reward": report.reward,
        "seconds": time.monotonic() - report.begin,
        "versions": report.versions,
        "killed": killed,
        "returned": returned,
        "in_place": report.in_place,
        "copied": report.copied,
        "slabs": pool.made,
        "reused": pool.reused,
    }


def main() -> int:
    """Starts an owner, trains, and reports whether the goal was reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument(
        "--programs", type=Path, required=True, help="the folder with the programs sharedtensor and worker"
    )
    parser.add_argument("--goal", type=float, default=400, help="mean reward to reach, of 500")
    parser.add_argument("--seconds", type=float, default=120, help="time limit")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--steps", type=int, default=512, help="steps of a rollout")
    parser.add_argument(
        "--kill-after", type=float, default=6, help="seconds until a worker is killed; more than --seconds kills none"
    )
    parser.add_argument("--framework", choices=["torch", "numpy"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the result as JSON at the end")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rl") as folder:
        socket = f"{folder}/s.sock"
        log = subprocess.DEVNULL if not os.environ.get("RL_VERBOSE") else None
        owner = subprocess.Popen(
            [options.programs / "sharedtensor", "serve", "--socket", socket], stdout=log, stderr=log
        )
        try:
            with st.connect(socket, wait=20) as client:
                result = train(client, options)
        finally:
            owner.terminate()
            owner.wait(10)
    learned = result["reward"] > options.goal
    verdict = "learned" if learned else "NOT learned"
    print(
        json.dumps(result)
        if options.json
        else f"mean reward {result['reward']:.1f} after {result['seconds']:.1f} s: {verdict}"
    )
    return 0 if learned else 1


if __name__ == "__main__":
    sys.exit(main())
