"""Training runs on NATS: parameters to workers, data to the trainer."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest
from conftest import Gateway

import sharedtensor as st

pytest.importorskip("nats", reason="nats-py is not installed")

from sharedtensor.remote import bins
from sharedtensor.remote.rl import SupersededError, Trainer, Worker

# The trainer and the worker of tensorshare's README, with their imports changed, and shorter pauses and loops.
TRAINER = """
from sharedtensor.remote.rl import RLTrainer
import torch
from threading import Thread
from time import sleep


def train(ts):
    net = torch.nn.Linear(10, 2)
    try:
        for i_iter in range(2):
            ts.publish_parameters(net.state_dict())

            # Aggregate a batch
            batch_size = 16
            data_buffer = torch.zeros(batch_size, 10)
            i = 0
            while i < batch_size:
                data = ts.get_data()
                for item in data:
                    data_buffer[i, :] = item
                    i += 1
                    if i == batch_size:
                        break
                sleep(.05)

            # Train on the batch
            loss = net(data_buffer).mean()
            print('Iteration', i_iter, 'Loss:', loss)
            loss.backward()
            with torch.no_grad():
                net.weight -= 0.001 * net.weight.grad
                net.weight.grad *= 0

            # Publish new parameters
            ts.publish_parameters(net.state_dict())
    finally:
        ts.stop()

# Also host the server. In a real application it's better to have a dedicated process host the server.
tmp = RLTrainer('localhost', PORT, host_server=True, filter_version=False)
Thread(target=train, args=(tmp, ), daemon=True).start()
tmp.start()
"""
WORKER = """
from sharedtensor.remote.rl import RLWorker
import torch
from threading import Thread
from time import sleep

def generate_rollouts(ts):
    net = torch.nn.Linear(10, 2)

    try:
        # Load latest published parameters
        params = ts.get_parameters()
        if params is None:  # In case no parameters were available on the server
            params = ts.await_new_parameters(timeout=None)   # We wait until they are available
        net.load_state_dict(params)

        for _ in range(150):
            # Generate a rollout
            x = torch.randn(1, 10)
            ts.add_data(x)
            sleep(.01)
            # Load newest parameters
            params = ts.get_parameters()    # This returns the latest published parameters
            net.load_state_dict(params)
    finally:
        ts.stop()


tmp = RLWorker('localhost', PORT)
Thread(target=generate_rollouts, args=(tmp, ), daemon=True).start()
tmp.start()
"""


def test_readme_of_tensorshare_runs(gateway: Gateway) -> None:
    pytest.importorskip("torch", reason="torch is not installed: the programs use it")
    env = {"PYTHONPATH": str(Path(st.__file__).parent.parent)}
    port = gateway.nats.rpartition(":")[2]
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", text.replace("PORT", port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
        )
        for text in (WORKER, TRAINER)
    ]
    try:
        outputs = [program.communicate(timeout=120)[0].decode() for program in programs]
    finally:
        for program in programs:
            program.kill()
            program.wait(30)
    assert [program.returncode for program in programs] == [0, 0], outputs
    assert "Iteration 1 Loss: tensor(" in outputs[1], outputs


def test_runs(gateway: Gateway) -> None:
    run = uuid.uuid4().hex
    parameters = {"w": np.arange(200_000.0), "b": np.ones(2, np.int8)}
    with (
        Worker(gateway.nats, run=run, name="w", framework="numpy") as worker,
        Trainer(gateway.nats, run=run, framework="numpy") as trainer,
    ):
        assert worker.latest() is None and trainer.version == -1
        with pytest.raises(st.DeadlineExceededError):
            worker.wait(-1, timeout=0.1)
        worker.add("before the first")
        assert trainer.publish(parameters) == 0
        assert trainer.pull(10, timeout=0.5) == [] and trainer.dropped == 1
        got = worker.wait(-1, timeout=30)
        assert np.array_equal(got["w"], parameters["w"]) and got["b"].dtype == np.int8
        worker.add({"x": np.arange(100_000.0), "reward": 1.5}, meta={"k": "v"})
        (sample,) = trainer.pull(10, timeout=30)
        assert (sample.version, sample.worker, sample.meta) == (0, "w", {"k": "v"})
        assert sample.value["reward"] == 1.5 and np.array_equal(sample.value["x"], np.arange(100_000.0))
        sample.ack()
        for version in range(1, 6):
            assert trainer.publish({"w": np.full(3, version)}) == version
        latest = worker.wait(4, timeout=30)
        assert worker.version == 5 and latest["w"][0] == 5 and worker.latest() is latest
        with Trainer(gateway.nats, run=run, framework="numpy") as second:
            assert second.version == 5 and second.publish(parameters) == 6
        with pytest.raises(SupersededError):
            trainer.publish(parameters)
    with pytest.raises(st.InvalidArgumentError):
        Trainer(gateway.nats, run="a run")


def test_damaged_data_does_not_stop_the_trainer(gateway: Gateway) -> None:
    """Data that cannot be read is removed; the data around it arrives once."""
    run = uuid.uuid4().hex[:12]
    with Trainer(gateway.nats, run=run, staleness=None) as trainer, Worker(gateway.nats, run=run, name="w") as worker:
        subject = f"queue.rl_{run}.v-1.w"

        async def add(media_type: str, body: bytes, headers: dict[str, str]) -> None:
            await bins.write(worker._js, worker._queue, subject, "append", media_type, body, {}, headers)

        worker.add({"x": 1})
        worker._background.run(add("application/json", b"{not json", {}))
        worker._background.run(add("application/json", b"1", {"Bin-Size": "77"}))
        worker._background.run(add("application/json", b"1", {"Bin-Meta": "{"}))
        worker.add({"x": 2})
        found: list[object] = []
        for _ in range(20):
            for sample in trainer.pull(8, timeout=1):
                found.append(sample.value)
                sample.ack()
            if len(found) >= 2:
                break
        assert found == [{"x": 1}, {"x": 2}] and trainer.damaged == 3
        assert trainer.pull(8, timeout=0.5) == []
