"""A trainer and its workers in reinforcement learning, over NATS: parameters to the workers, data to the trainer.

>>> from sharedtensor.remote.rl import Trainer, Worker
>>> with Trainer("nats://gpu7:4222", run="cartpole") as trainer:
...     version = trainer.publish(net.state_dict())
...     for sample in trainer.pull(32, timeout=10): use(sample.value); sample.ack()
>>> with Worker("nats://gpu7:4222", run="cartpole") as worker:
...     parameters = worker.wait(-1)
...     worker.add({"obs": obs, "reward": 1.0})

Programs of the Go package endpoint/remote/rl join the same runs. Members in Python fetch bytes, also on the owner's
host, and are not listed. `RLTrainer` and `RLWorker` have the interface of tensorshare.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any

from ..errors import (
    CapabilityError,
    ConnectionLostError,
    DeadlineExceededError,
    Error,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ProtocolError,
    UnavailableError,
)
from . import natslink, payloads
from .background import Background
from .bins import BodyGoneError, Store, escape, load, unescape, unquote, write
from .elements import Array
from .natslink import ConflictError, api, nats
from .objects import Objects

_POINTER = "application/vnd.sharedtensor.parameters+json"
_KEEP = 3  # versions of parameters for slow workers
_REDELIVER = 30.0  # seconds
_ACK_WAIT = 20.0  # seconds for which an acknowledgement is repeated
_GONE_DELIVERIES = 4  # of data whose body is gone, before it counts as damaged
_log = logging.getLogger("sharedtensor.remote")


class SupersededError(ConflictError):
    """Another trainer has published for the run since this one began."""


class _Run:
    """The common part of a trainer and a worker."""

    def __init__(self, server: str, run: str, name: str, options: Mapping[str, Any]) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", run):
            raise InvalidArgumentError(f"run {run!r}: use 1 to 32 letters, digits, '-' and '_'")
        self.run = run
        self.name = name or re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:40] + f"-{os.getpid()}"
        self._bin = f"{run}.parameters"
        self._bucket = f"RL_{run}_parameters"
        self._queue = f"QUEUE_rl_{run}"
        self._background = Background()
        try:
            self._store = self._background.run(Store.open(server, namespace="rl", **options))
            self._js = self._store.conn.jetstream(timeout=10)
            self._background.run(self._open())
        except BaseException:
            self._background.close()
            raise

    async def _open(self) -> None:
        retention = api.RetentionPolicy.WORK_QUEUE
        await natslink.create_stream(self._js, self._queue, f"queue.rl_{self.run}.>", retention=retention)

    async def _pointer(self) -> tuple[dict[str, Any] | None, int]:
        """Returns the newest pointer to parameters and its sequence number, or None and 0."""
        items = await self._store.peek(self._bin)
        if not items:
            return None, 0
        try:
            pointer = json.loads(items[-1].value)
            if items[-1].type != _POINTER or int(pointer["version"]) < 0:
                raise ValueError(items[-1].type)
        except (ValueError, KeyError, TypeError) as err:
            raise ProtocolError(f"the bin {self._bin!r} has no parameters: {err}") from err
        return pointer, items[-1].sequence

    def close(self) -> None:
        """Leaves the run. Parameters and data stay. A second call has no effect."""
        with contextlib.suppress(Error):
            self._background.run(self._store.close())
        self._background.close()


class Sample:
    """Data of a worker. It is delivered again unless `ack` is called.

    :ivar version: of the parameters that the worker had, -1 if it had none.
    :ivar worker: its name.
    """

    def __init__(self, trainer: Trainer, message: Any, value: Any, version: int, worker: str, meta: Any) -> None:
        self.value = value
        self.version = version
        self.worker = worker
        self.meta: dict[str, str] = meta
        self._trainer = trainer
        self._message = message

    def ack(self) -> None:
        """Removes the data."""
        self._trainer._background.run(self._trainer._done(self._message))


class Trainer(_Run):
    """Publishes parameters and receives data. Its methods may be used by several threads.

    :param server: URL of NATS.
    :param staleness: the maximum age of data in versions. Older data is dropped. None disables the limit.
    :param options: of `bins.Store.open`, such as `token` and `framework`.
    :ivar dropped: the number of samples that were too old.
    :ivar damaged: the number of samples that could not be read and were removed.
    """

    def __init__(
        self,
        server: str = "nats://127.0.0.1:4222",
        *,
        run: str,
        name: str = "",
        staleness: int | None = 0,
        **options: Any,
    ) -> None:
        self._staleness = staleness
        self._publishing = threading.Lock()
        self._unsure: str | None = None  # the id of a version with an unknown outcome
        self.dropped = 0
        self.damaged = 0
        super().__init__(server, run, name, options)
        try:
            pointer, self._sequence = self._background.run(self._pointer())
        except BaseException:
            self.close()
            raise
        self.version: int = -1 if pointer is None else int(pointer["version"])

    async def _open(self) -> None:
        await super()._open()
        await Objects.create(self._js, self._queue)  # without it, a body that is gone looks like an outage
        subject = f"$JS.API.CONSUMER.INFO.{self._queue}.pullers"
        try:
            await natslink.manage(self._store.conn, subject, lambda: self._js.consumer_info(self._queue, "pullers"))
        except (NotFoundError, PermissionDeniedError):  # with scopes, there is no right to what is missing
            config = api.ConsumerConfig(
                name="pullers",
                durable_name="pullers",
                ack_policy=api.AckPolicy.EXPLICIT,
                ack_wait=_REDELIVER,
                max_deliver=-1,
                max_ack_pending=-1,
            )
            subject = f"$JS.API.CONSUMER.CREATE.{self._queue}.pullers"
            await natslink.manage(self._store.conn, subject, lambda: self._js.add_consumer(self._queue, config))
        self._pull = await self._js.pull_subscribe_bind("pullers", self._queue)

    def publish(self, parameters: Mapping[str, Array]) -> int:
        """Publishes a state dict and returns its version. Versions count from 0.

        Raises SupersededError, or ConnectionLostError if it may be published: the next call finds out.
        """
        body = payloads.to_safetensors(parameters)
        with self._publishing:
            return self._background.run(self._publish(body))

    async def _settle(self) -> None:
        """Finds out whether the version with an unknown outcome is published. If it is not, it may be later, unless
        another one is published before."""
        now, sequence = await self._pointer()
        if now is not None and now.get("id") == self._unsure:
            self.version, self._sequence, self._unsure = int(now["version"]), sequence, None
        elif sequence > self._sequence:
            raise SupersededError(f"run {self.run!r}: another trainer has published")

    async def _publish(self, body: bytes) -> int:
        if self._unsure is not None:
            await self._settle()
        version, id = self.version + 1, uuid.uuid4().hex
        store = await Objects.create(self._js, self._bucket)
        object = f"v{version}.{self.name}.{id}"
        await store.put(object, body)
        pointer = {"version": version, "trainer": self.name, "id": id, "object": object, "bytes": len(body)}
        try:
            text = json.dumps(pointer).encode()
            self._sequence = await self._store.write(self._bin, "put", _POINTER, text, last=self._sequence)
        except ConflictError as err:
            now, sequence = await self._pointer()
            if now is None or now.get("id") != id:
                with contextlib.suppress(Error):
                    await store.delete(object)
                if self._unsure is None:
                    raise SupersededError(f"run {self.run!r}: another trainer has published") from err
                await self._settle()  # it is published only now, so this version needs the next number
                return await self._publish(body)
            self._sequence = sequence
        except ConnectionLostError:
            self._unsure = id
            raise
        except Error:
            with contextlib.suppress(Error):
                await store.delete(object)
            raise
        self._unsure = None  # the condition of an earlier version can no longer hold
        self.version = version
        with contextlib.suppress(Error, nats.errors.Error):  # the next version removes what remains
            for name in await store.names():
                found = re.match(r"v(\d+)\.", name)
                if found and int(found[1]) <= version - _KEEP:
                    await store.delete(name)
        return version

    def pull(self, max: int = 1, timeout: float | None = None) -> list[Sample]:
        """Returns at least one sample and at most `max`, oldest first; none if the timeout expires."""
        return self._background.run(self._samples(max, timeout))

    async def _samples(self, max: int, timeout: float | None) -> list[Sample]:
        until = None if timeout is None else time.monotonic() + timeout
        samples: list[Sample] = []
        while not samples:
            left = 5.0 if until is None else min(5.0, until - time.monotonic())
            if left <= 0:
                break
            try:
                messages = await self._pull.fetch(max, timeout=left)
            except (asyncio.TimeoutError, TimeoutError):
                continue
            except nats.errors.Error:
                if self._store.conn.is_closed:
                    raise
                await asyncio.sleep(0.2)
                continue
            for message in messages:
                sample = await self._opened(message)
                if sample is None:
                    continue
                if self._staleness is None or sample.version >= self.version - self._staleness:
                    samples.append(sample)
                    continue
                self.dropped += 1
                await self._done(message)
        return samples

    async def _opened(self, message: Any) -> Sample | None:
        """Returns the sample of a message. Removes damaged data, with a warning: it would be delivered for ever. Data
        that cannot be loaded now is delivered again later."""

        async def extend() -> None:
            while True:
                await asyncio.sleep(_REDELIVER / 3)
                await message.in_progress()

        extending = asyncio.create_task(extend())  # a large body may take longer than the time until a redelivery
        try:
            return await self._sample(message)
        except (UnavailableError, ConnectionLostError, asyncio.TimeoutError, nats.errors.Error, OSError) as err:
            _log.info("run %s: data waits for its redelivery: %s", self.run, err)
            with contextlib.suppress(nats.errors.Error, OSError):
                await message.nak(delay=1)
            return None
        except BodyGoneError as err:
            if message.metadata.num_delivered < _GONE_DELIVERIES:  # a replica may lack the newest objects
                with contextlib.suppress(nats.errors.Error, OSError):
                    await message.nak(delay=1)
                return None
            await self._remove_damaged(message, err)
        except Exception as err:
            await self._remove_damaged(message, err)
        finally:
            extending.cancel()
        return None

    async def _remove_damaged(self, message: Any, err: Exception) -> None:
        self.damaged += 1
        _log.warning("run %s: removed data that cannot be read (%s): %s", self.run, message.subject, err)
        with contextlib.suppress(nats.errors.Error, OSError):
            await message.term()
        name = (message.headers or {}).get("Bin-Object")
        if name:
            with contextlib.suppress(Error):  # a sweep removes it
                await Objects(self._js, self._queue).delete(name)

    async def _sample(self, message: Any) -> Sample:
        headers = dict(message.headers or {})
        found = re.fullmatch(r"queue\.[^.]+\.v(-?\d+)\.(.+)", message.subject)
        if found is None:
            raise ProtocolError(f"data with the topic {message.subject!r}")
        media_type = unquote(headers.get("Bin-Type", ""))
        body = await load(self._js, self._queue, headers, message.data)
        meta = json.loads(unquote(headers["Bin-Meta"])) if "Bin-Meta" in headers else {}
        value = payloads.decode(media_type, body, self._store.framework)
        return Sample(self, message, value, int(found[1]), unescape(found[2]), meta)

    async def _done(self, message: Any) -> None:
        until = time.monotonic() + _ACK_WAIT
        while True:  # to acknowledge twice has no effect
            try:
                await message.ack_sync(timeout=natslink.TIMEOUT / 2)
                break
            except nats.errors.MsgAlreadyAckdError:
                break
            except (nats.errors.Error, asyncio.TimeoutError, TimeoutError) as err:
                if time.monotonic() > until:
                    raise UnavailableError("data was not acknowledged in time, and may be delivered again") from err
            await asyncio.sleep(0.2)
        name = (message.headers or {}).get("Bin-Object")
        if name:
            with contextlib.suppress(Error):  # a sweep removes it
                await Objects(self._js, self._queue).delete(name)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Worker(_Run):
    """Receives parameters and sends data. Its methods may be used by several threads.

    :ivar version: of the parameters that it received last, -1 before the first.
    """

    def __init__(self, server: str = "nats://127.0.0.1:4222", *, run: str, name: str = "", **options: Any) -> None:
        self.version = -1
        self._parameters: dict[str, Array] | None = None
        super().__init__(server, run, name, options)

    def latest(self) -> dict[str, Array] | None:
        """Returns the newest parameters, or None if there are none."""
        return self._background.run(self._latest())

    async def _latest(self) -> dict[str, Array] | None:
        while True:
            pointer, _ = await self._pointer()
            if pointer is None or int(pointer["version"]) == self.version:
                return self._parameters
            if not pointer.get("object"):
                raise CapabilityError(f"the parameters of run {self.run!r} are in an owner's memory only")
            try:
                body = await Objects(self._js, self._bucket).get(pointer["object"])
            except NotFoundError:
                newer, _ = await self._pointer()
                if newer is None or newer["version"] == pointer["version"]:
                    raise ProtocolError(f"parameters {pointer['version']} of run {self.run!r} are gone") from None
                continue
            if len(body) != pointer.get("bytes"):
                raise ProtocolError(f"{len(body)} bytes of parameters, of {pointer.get('bytes')}")
            self._parameters = payloads.from_safetensors(body, self._store.framework)
            self.version = int(pointer["version"])
            return self._parameters

    def wait(self, after: int, timeout: float | None = None) -> dict[str, Array]:
        """Waits for a version above `after` and returns the newest. Raises DeadlineExceededError."""
        return self._background.run(self._wait(after, timeout))

    async def _wait(self, after: int, timeout: float | None) -> dict[str, Array]:
        async def changed() -> None:
            async with contextlib.aclosing(self._store.listen(self._bin, initial=True)) as events:
                async for _ in events:
                    pointer, _ = await self._pointer()
                    if pointer is not None and int(pointer["version"]) > after:
                        return

        try:
            await asyncio.wait_for(changed(), timeout)
        except (asyncio.TimeoutError, TimeoutError):
            raise DeadlineExceededError(f"no version after {after} within {timeout} seconds") from None
        found = await self._latest()
        assert found is not None
        return found

    def add(self, value: Any, *, meta: Mapping[str, str] | None = None) -> None:
        """Sends data to the trainer, with the version of the parameters that this worker received last."""
        media_type, body = payloads.encode(value)
        subject = f"queue.rl_{self.run}.v{self.version}.{escape(self.name)}"
        self._background.run(write(self._js, self._queue, subject, "append", media_type, body, meta or {}, {}))

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RLTrainer:
    """The trainer of tensorshare.

    :param port: of NATS.
    :param host_server: has no effect: the gateway is the server.
    :param filter_version: whether data of older parameters is dropped.
    :param options: of `Trainer`.
    """

    def __init__(
        self, host: str, port: int, host_server: bool = False, filter_version: bool = True, **options: Any
    ) -> None:
        given = {"run": "tensorshare", "staleness": 0 if filter_version else None, **options}
        self._trainer = Trainer(f"nats://{host}:{port}", **given)
        self._stopped = threading.Event()

    def publish_parameters(self, parameters: Mapping[str, Array]) -> int:
        """Publishes a state dict and returns its version."""
        return self._trainer.publish(parameters)

    def get_data(self, return_versions: bool = False) -> list[Any]:
        """Returns the data that has arrived; with `return_versions` pairs of data and version."""
        found: list[Any] = []
        for sample in self._trainer.pull(256, timeout=0.2):
            found.append((sample.value, sample.version) if return_versions else sample.value)
            sample.ack()
        return found

    def start(self) -> None:
        """Blocks until `stop`."""
        self._stopped.wait()
        self._trainer.close()

    def stop(self) -> None:
        """Ends the trainer."""
        self._stopped.set()


class RLWorker:
    """The worker of tensorshare.

    :param port: of NATS.
    :param host_server: has no effect: the gateway is the server.
    :param options: of `Worker`.
    """

    def __init__(self, host: str, port: int, host_server: bool = False, **options: Any) -> None:
        self._worker = Worker(f"nats://{host}:{port}", **{"run": "tensorshare", **options})
        self._stopped = threading.Event()

    def get_parameters(self) -> dict[str, Array] | None:
        """Returns the newest parameters, or None if there are none."""
        return self._worker.latest()

    def await_new_parameters(self, timeout: float | None = None) -> dict[str, Array] | None:
        """Waits for parameters that `get_parameters` has not returned. Returns the current ones after the timeout."""
        try:
            return self._worker.wait(self._worker.version, timeout)
        except DeadlineExceededError:
            return self._worker.latest()

    def add_data(self, data: Any) -> None:
        """Sends data to the trainer."""
        self._worker.add(data)

    def start(self) -> None:
        """Blocks until `stop`."""
        self._stopped.wait()
        self._worker.close()

    def stop(self) -> None:
        """Ends the worker."""
        self._stopped.set()
