"""The client: one connection to an owner, for any number of threads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar, overload

from . import calls, catalog, frameworks, messages, objects, operations, tasks, writer
from .calls import NOTHING, Object, Stream
from .connection import Connection
from .endpoints import Endpoints
from .inspection import Inspection
from .lease import Reference
from .memory import require_linux
from .models import Model
from .options import Options, checked
from .paths import socket_path
from .placing import Place
from .serverinfo import ServerInfo
from .stats import ClientStats
from .tasks import Task, TaskList, TaskWatch
from .tensors import NUMPY, TORCH, A, Choice, NumpyArray, Tensor, Value
from .version_parts import RankPart
from .waiting import seconds
from .watching import Follower, Watch
from .workers import Function, Offer
from .writer import VersionWriter

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


@overload
def connect(
    path: str | os.PathLike[str] | None = ...,
    *,
    framework: TORCH | None = ...,
    timeout: float | None = ...,
    reconnect: float = ...,
    wait: float = ...,
    uid: int | None = ...,
    keep: int = ...,
) -> Client[Tensor]: ...
@overload
def connect(
    path: str | os.PathLike[str] | None = ...,
    *,
    framework: NUMPY,
    timeout: float | None = ...,
    reconnect: float = ...,
    wait: float = ...,
    uid: int | None = ...,
    keep: int = ...,
) -> Client[NumpyArray]: ...
def connect(
    path: str | os.PathLike[str] | None = None,
    *,
    framework: str | None = None,
    timeout: float | None = None,
    reconnect: float = 10.0,
    wait: float = 0.0,
    uid: int | None = None,
    keep: int = 1 << 30,
) -> Any:
    """Connects to the owner of this user on this host.

    :param path: of its socket; by default that of :func:`socket_path`.
    :param framework: "torch" or "numpy", what tensors are; by default torch's if torch is installed. The first use of
        the default imports torch.
    :param timeout: default time limit of a request in seconds; None for no limit. A request may have another one, or
        `NO_LIMIT`.
    :param reconnect: seconds to look for the owner again when the connection is lost, before a request fails with
        UnavailableError; 0 never connects again.
    :param wait: seconds to wait for an owner that is not running yet.
    :param uid: the user of the server, if it is not this process's.
    :param keep: bytes of memory to keep for publishing and for arguments, beyond what other processes still map.

    Raises UnavailableError if no server answers, PermissionDeniedError for a server of another user.
    """
    require_linux()
    return Client(
        socket_path(path), framework=framework, timeout=timeout, reconnect=reconnect, wait=wait, uid=uid, keep=keep
    )


class Client(Connection, Generic[A]):
    """A client of one owner. Made by `connect`. Safe for threads; in a forked child it raises ForkError. Unpickling one
    connects anew, with the same options.

    When the connection is lost the next request connects again, and leases and references are taken again at once, in
    the background. Requests that change nothing are then repeated; a call or a publication whose answer was lost raises
    ConnectionLostError.
    """

    def __enter__(self) -> Client[A]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- models

    @overload
    def acquire(
        self,
        name: str,
        version: int = ...,
        *,
        tensors: Choice | None = ...,
        framework: None = ...,
        device: Place = ...,
        part: RankPart | None = ...,
        wait: float = ...,
        timeout: float | None = ...,
    ) -> Model[A]: ...
    @overload
    def acquire(
        self,
        name: str,
        version: int = ...,
        *,
        tensors: Choice | None = ...,
        framework: TORCH,
        device: Place = ...,
        part: RankPart | None = ...,
        wait: float = ...,
        timeout: float | None = ...,
    ) -> Model[Tensor]: ...
    @overload
    def acquire(
        self,
        name: str,
        version: int = ...,
        *,
        tensors: Choice | None = ...,
        framework: NUMPY,
        device: Place = ...,
        part: RankPart | None = ...,
        wait: float = ...,
        timeout: float | None = ...,
    ) -> Model[NumpyArray]: ...
    def acquire(
        self,
        name: str,
        version: int = 0,
        *,
        tensors: Choice | None = None,
        framework: str | None = None,
        device: Place = None,
        part: RankPart | None = None,
        wait: float = 0.0,
        timeout: float | None = None,
    ) -> Any:
        """Attaches to a version, by one message and one mapping for each storage.

        :param version: 0 for the newest.
        :param tensors: the names to attach, or a function that reports whether a name is one of them. Only the part of
            the memory from the first to the last of them is mapped. By default all tensors are attached.
        :param framework: "torch" or "numpy", what its tensors are.
        :param device: where the memory is: "cpu", or "cuda:0" by the number of this process. The owner copies the
            version there once for all processes (``serve --place``). By default it is where it was published.
        :param part: the index of the part of a version that several ranks publish, or (index, number of parts).
        :param wait: seconds to wait for a name that is not published yet.

        Raises NotFoundError, VersionNotFoundError, and UnsupportedError if the owner places nothing on the device. The
        model is a read-only mapping of names to tensors in the owner's
        memory.
        """
        chosen = frameworks.choose(framework or self._framework)
        if wait:
            with self.follow(name) as follower:
                limit = seconds(wait)
                follower._wait(0, None if limit is None else time.monotonic() + limit)
        return self._acquire(name, version, chosen, tensors, device, part, timeout)

    def publish(
        self,
        name: str,
        state_dict: Mapping[str, Any],
        *,
        source: str = "",
        metadata: Mapping[str, str] | None = None,
        digests: bool = False,
        owner_digests: bool = False,
        part: tuple[int, int] | None = None,
        part_key: str = "",
        timeout: float | None = None,
    ) -> int:
        """Publishes a state dict as the next version of a name and returns that version.

        The tensors are copied once, into one slab of shared memory. Tensors that share memory share it there too. The
        slab of an earlier publication is reused once no other process maps it, so a loop makes memory only for its
        first versions.

        :param source: the origin, for people.
        :param metadata: texts for the clients that acquire it.
        :param digests: sends the SHA-256 of each tensor along: readers find it in `Model.spec(name).digest`.
        :param owner_digests: has the owner compute digests itself, in the background; `digest` waits for them.
        :param part: (index, number of parts) of a version that several ranks publish. `publish` then waits for the
            other parts, and all become current at once. IncompleteVersionError if they do not come in time.
        :param part_key: what all parts of the version must have in common, such as the training step.
        """
        make = partial(
            catalog.publish,
            name,
            state_dict,
            self._pool,
            source=source,
            metadata=metadata,
            digests=digests,
            owner_digests=owner_digests,
            part=part,
            part_key=part_key,
        )
        return self._run_made(make, timeout=timeout)

    @overload
    def create(self, name: str, specs: writer.Specs, *, framework: None = ...) -> VersionWriter[A]: ...
    @overload
    def create(self, name: str, specs: writer.Specs, *, framework: TORCH) -> VersionWriter[Tensor]: ...
    @overload
    def create(self, name: str, specs: writer.Specs, *, framework: NUMPY) -> VersionWriter[NumpyArray]: ...
    def create(self, name: str, specs: writer.Specs, *, framework: str | None = None) -> Any:
        """Returns the next version of a name as writable, zeroed tensors in shared memory. Its `commit` publishes them
        without a copy.

        :param specs: the tensors by name. Each is described by an array or a tensor, whose values are not read and
            which may be on torch's device "meta", by a `TensorSpec`, or by a shape and a data type:
            ``{"w": ((1024, 1024), "bfloat16")}``. A state dict and a model describe their tensors, with tied names.
        :param framework: "torch" or "numpy", what its tensors are.

        The memory of an earlier version is reused once no process maps it, also not this one. Raises
        InvalidArgumentError or CapabilityError before memory is taken, and UnavailableError if no owner serves.
        """
        return writer.create(self, name, specs, frameworks.choose(framework or self._framework))

    def digest(self, name: str, version: int = 0, *, timeout: float | None = None) -> bytes:
        """Waits for the digest of a version that its owner computes, and returns its 32 bytes.

        Raises NotFoundError for an unknown version, and for one published without `owner_digests`.
        """
        return self._run_made(partial(operations.digests, name, version), timeout=timeout)

    def withdraw(self, name: str, *, timeout: float | None = None) -> None:
        """Withdraws a name. Clients that hold a version of it keep that version. Raises NotFoundError."""
        self._run(operations.withdraw(name), timeout=timeout)

    def rollback(self, name: str, version: int = 0, *, timeout: float | None = None) -> int:
        """Publishes the memory of a superseded version again and returns the new number. Nothing is copied.

        Version 0 is the newest superseded version that the owner keeps. Raises NotFoundError if it keeps none.
        """
        return self._run(operations.rollback(name, version), timeout=timeout)

    def list(self, *, timeout: float | None = None) -> catalog.Models:
        """Returns the published names, with their versions and holders."""
        return self._run_steps(catalog.all_models(), timeout=timeout)

    def inspect(self, name: str, version: int = 0, *, timeout: float | None = None) -> Inspection:
        """Returns the versions of a name and the tensors of one version, without attaching."""
        return Inspection(self._run(operations.info(name, version, True), timeout=timeout))

    def watch(self, *names: str) -> Watch:
        """Returns an iterator over events of names, or of all names. It begins with their present state."""
        return Watch(self, names)

    @overload
    def follow(
        self, name: str, *, framework: None = ..., device: Place = ..., part: RankPart | None = ...
    ) -> Follower[A]: ...
    @overload
    def follow(
        self, name: str, *, framework: TORCH, device: Place = ..., part: RankPart | None = ...
    ) -> Follower[Tensor]: ...
    @overload
    def follow(
        self, name: str, *, framework: NUMPY, device: Place = ..., part: RankPart | None = ...
    ) -> Follower[NumpyArray]: ...
    def follow(
        self, name: str, *, framework: str | None = None, device: Place = None, part: RankPart | None = None
    ) -> Any:
        """Returns a follower of a name: it returns the newest version and waits for newer ones. `device` and `part` are
        those of `acquire`."""
        return Follower(self, name, framework, device=device, part=part)

    # ---- a worker

    def offer(
        self, *, calls: int = 1, framework: str | None = None, **functions: Function | Callable[..., Any]
    ) -> Offer:
        """Offers functions of this process to all who may call the owner, by the names of these arguments.

        :param calls: how many run at once, each in a separate thread.
        :param framework: "torch" or "numpy", what the tensors of arguments are.
        :param functions: see `Function` for how they are called, and for what the owner can do about them.

        Tensors of arguments are the caller's memory, read-only, until the function returns. Tensors of results in
        shared memory (`empty`, an argument) are passed in place; others are copied there once. The memory belongs to
        the owner then: do not write to it. An exception becomes the caller's error, by code and type or by the name of
        its class. `current_call` reports whether the caller still waits.

        Raises UnsupportedError if the owner accepts no offers, PermissionDeniedError if it accepts none of this
        process, ProviderError for a name that is taken.
        """
        return Offer(self, functions, calls=calls, framework=framework)

    @overload
    def endpoint(self, function: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def endpoint(
        self,
        /,
        *,
        name: str = ...,
        cache: bool = ...,
        managed: bool = ...,
        task: bool = ...,
        timeout: float | None = ...,
        batch: tuple[int, float] | None = ...,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    def endpoint(self, function: Any = None, /, *, name: str = "", **how: Any) -> Any:
        """Marks a function for `serve`: ``@c.endpoint``, or with the fields of `Function`, ``@c.endpoint(cache=True)``.
        Its name is that of the function, if none is given. The function itself stays as it is."""

        def mark(function: Callable[P, R]) -> Callable[P, R]:
            self._functions[name or function.__name__] = Function(function, **how)
            return function

        return mark if function is None else mark(function)

    def serve(self, *, calls: int = 1, framework: str | None = None) -> None:
        """Offers the functions that `endpoint` has marked, until the client is closed or this thread is interrupted.
        Raises what ends the offer otherwise, and what `offer` raises."""
        with Offer(self, self._functions, calls=calls, framework=framework) as offered:
            offered.wait()

    # ---- calls

    def call(
        self,
        endpoint: str,
        value: Any = NOTHING,
        /,
        *,
        timeout: float | None = None,
        writable: bool = False,
        framework: str | None = None,
        **fields: Any,
    ) -> Value:
        """Calls a function of the owner and returns its result.

        :param value: the argument, if it is not a struct. `options` is for functions whose fields have the names of
            these parameters, and for results of a known type.
        :param fields: the fields of the argument, with tensors at any place. Tensors over shared memory (of models, of
            results, of `empty`) are passed in place; others are copied once, into shared memory.
        :param writable: lets the function write into tensors made by `empty`.
        :param timeout: in seconds; the server stops the function then.

        Tensors of the result are the function's own memory, read-only. They keep the reference to a managed
        result.
        """
        return self._call(endpoint, calls.argument(value, fields), timeout, writable, framework)[0]

    @overload
    def options(
        self, *, timeout: float | None = ..., framework: str | None = ..., writable: bool = ..., returns: type[R]
    ) -> Options[R]: ...
    @overload
    def options(
        self, *, timeout: float | None = ..., framework: str | None = ..., writable: bool = ..., returns: None = ...
    ) -> Options[Value]: ...
    def options(
        self,
        *,
        timeout: float | None = None,
        framework: str | None = None,
        writable: bool = False,
        returns: type[Any] | None = None,
    ) -> Any:
        """Returns the calls of this client with settings, of which all keywords are fields of the function:
        ``c.options(timeout=5).stream("steps", timeout=3)``.

        :param timeout: seconds for a call, for a whole stream, or for the request of `submit`.
        :param returns: the type of results. It is checked, and type checkers know it.
        """
        return Options(self, timeout, framework, writable, returns)

    def call_object(
        self,
        endpoint: str,
        value: Any = NOTHING,
        /,
        *,
        timeout: float | None = None,
        framework: str | None = None,
        **fields: Any,
    ) -> Object:
        """Calls a function whose results are managed and returns the object: value, id, and the reference to give
        back."""
        found = self._call(endpoint, calls.argument(value, fields), timeout, False, framework)
        return calls.object_of(endpoint, found)

    def _call(
        self,
        endpoint: str,
        argument: Any,
        timeout: float | None,
        writable: bool,
        framework: str | None,
    ) -> tuple[Any, Object | None]:
        chosen = frameworks.choose(framework or self._framework)
        make = partial(calls.call, endpoint, argument, self._pool, chosen, self._track, writable)
        return self._run_made(make, timeout=timeout)

    def _track(self, reference: Reference) -> None:
        self._references.add(reference)
        session = reference.session
        if session is not None:
            objects.watch(session, self._references)  # once for each session

    def stream(
        self, endpoint: str, value: Any = NOTHING, /, *, framework: str | None = None, **fields: Any
    ) -> Stream[Value]:
        """Calls a function that yields results and returns an iterator over them as they come. Closing it stops the
        function. The client's timeout does not apply to it; `options` gives it one."""
        return self._stream(endpoint, calls.argument(value, fields), None, framework, None)

    def _stream(
        self, endpoint: str, argument: Any, timeout: float | None, framework: str | None, returns: type[Any] | None
    ) -> Stream[Any]:
        return Stream(
            endpoint,
            argument,
            self,
            frameworks.choose(framework or self._framework),
            timeout=timeout,
            check=None if returns is None else partial(checked, returns=returns, endpoint=endpoint),
        )

    def endpoints(self, *, timeout: float | None = None) -> Endpoints:
        """Returns the functions that the owner has, with their arguments and results."""
        return self._run(operations.endpoints(), timeout=timeout)

    def invalidate(self, endpoint: str, value: Any = NOTHING, /, **fields: Any) -> int:
        """Drops cached results: that of one call, or with no argument all of an endpoint. Returns how many."""
        return self._run_made(partial(calls.invalidate, endpoint, value, fields, self._pool))

    # ---- tasks

    def submit(self, endpoint: str, value: Any = NOTHING, /, **fields: Any) -> Task:
        """Starts a call as a task, which continues when this client leaves, and returns it. `options` gives the request
        a timeout."""
        return self._submit(endpoint, calls.argument(value, fields), None)

    def _submit(self, endpoint: str, argument: Any, timeout: float | None) -> Task:
        return Task(self, *self._run_made(partial(tasks.submit, endpoint, argument, self._pool), timeout=timeout))

    def task(self, id: str, *, timeout: float | None = None) -> Task:
        """Returns a task by its id. Raises TaskNotFoundError."""
        return Task(self, self._run(tasks.info(id), timeout=timeout))

    def tasks(
        self, states: Iterable[str] = (), *, endpoint: str = "", mine: bool = False, timeout: float | None = None
    ) -> TaskList:
        """Returns the tasks of the owner, by state, by endpoint, or of this connection only."""
        return self._run(tasks.listing([*states], endpoint, mine), timeout=timeout)

    def watch_tasks(self, *, id: str = "", endpoint: str = "", mine: bool = False) -> TaskWatch:
        """Returns an iterator over tasks as they change, beginning with the present ones."""
        return TaskWatch(self, id, endpoint, mine)

    # ---- objects and the server

    def objects(self, *endpoints: str) -> objects.Objects:
        """Returns the managed objects of the owner and their holders."""
        found: objects.Objects = self._run_steps(objects.all_objects([*endpoints]))
        return found

    def object(self, id: str, *, timeout: float | None = None) -> messages.ObjectInfo:
        """Returns the description of a managed object. Raises StaleHandleError if it is gone."""
        return self._run(objects.info(id), timeout=timeout)

    def destroy(self, id: str, *, timeout: float | None = None) -> messages.ObjectInfo:
        """Destroys an object although it has holders. For the server's own user and root. Returns its last state."""
        return self._run(objects.destroy(id), timeout=timeout)

    def stats(self) -> ClientStats:
        """Returns what this client holds and has made: memory by purpose, leases, references."""
        return ClientStats(
            publications=self._pool.publications.stats,
            arguments=self._pool.arguments.stats,
            results=self._pool.results.stats,
            free_bytes=self._pool.free,
            leases=len(self._leases),
            references=len(self._references),
        )

    def ping(self, *, timeout: float | None = None) -> float:
        """Returns the round-trip time of a request in seconds."""
        begin = time.perf_counter()
        self._run(operations.ping(), timeout=timeout)
        return time.perf_counter() - begin

    def info(self, *, timeout: float | None = None) -> ServerInfo:
        """Returns the state of the server: sessions, memory, endpoints, counters."""
        return self._run(operations.server_info(), timeout=timeout)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if self.connected else "not connected"
        return f"<sharedtensor.Client of {self.path}, {state}>"
