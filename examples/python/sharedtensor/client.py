"""The client: one connection to an owner, for any number of threads."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from . import calls, catalog, forks, frameworks, manifest, messages, objects, operations, tables, tasks
from .calls import NOTHING, Object, References, Stream
from .endpoints import Endpoints
from .errors import ClosedError, ConnectionLostError, DeadlineExceededError, Error, ForkError, UnavailableError
from .frames import Frame
from .groups import WeakGroup
from .lease import Reference
from .memory import SlabPools, require_linux
from .models import Model
from .op import Op
from .operations import Operation
from .paths import socket_path
from .serverinfo import ServerInfo
from .session import Pending, Session
from .tasks import Task, TaskList, TaskWatch
from .watching import Follower, Watch
from .workers import Function, Offer

T = TypeVar("T")
_Offers = list[Offer]  # a client has a method of that name


def connect(
    path: str | os.PathLike[str] | None = None,
    *,
    framework: str | None = None,
    timeout: float | None = None,
    reconnect: float = 10.0,
    wait: float = 0.0,
    uid: int | None = None,
    keep: int = 1 << 30,
) -> Client:
    """Connects to the owner of this user on this host.

    :param path: of its socket; by default ``$SHARED_TENSOR_BASE_PATH-0.sock``,
        ``$XDG_RUNTIME_DIR/shared-tensor-0.sock`` or ``/tmp/shared-tensor-UID/shared-tensor-0.sock``.
    :param framework: "torch" or "numpy", what tensors are; by default torch's if torch is installed. The first use of
        the default imports torch.
    :param timeout: default time limit of a request in seconds; None for no limit.
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


class Client:
    """A client of one owner. Made by `connect`. Safe for threads; in a forked child it raises ForkError. Unpickling one
    connects anew, with the same options.

    When the connection is lost the next request connects again, and leases and references are taken again at once, in
    the background. Requests that change nothing are then repeated; a call or a publication whose answer was lost raises
    ConnectionLostError.
    """

    _lock: threading.RLock

    def __init__(
        self,
        path: str,
        *,
        framework: str | None,
        timeout: float | None,
        reconnect: float,
        wait: float,
        uid: int | None,
        keep: int,
    ) -> None:
        self.path = path
        self._framework = framework
        self._timeout = timeout
        self._reconnect = reconnect
        self._uid = uid
        self._keep = keep
        self._current: Session | None = None
        self._closed = False
        self._pool = SlabPools(keep)
        self._leases = catalog.Leases()
        self._references = References()
        self._watchers: WeakGroup[Watch] = WeakGroup()
        self._offers: _Offers = []
        self._functions: dict[str, Function] = {}
        self._box: list[Session] = []
        self._finalizer = weakref.finalize(self, _close_later, self._box)
        self._pid = os.getpid()
        forks.track(self, _lock=threading.RLock, forked=Client._forked)
        self._open(wait)

    # ---- the connection

    def _session(self) -> Session:
        """Returns the session, a new one if the last was lost. Raises UnavailableError where none can be had."""
        session = self._current
        if session is not None and (session.closed is None or os.getpid() != self._pid):
            session.check()
            return session
        if self._closed:
            raise ClosedError("the client is closed")
        return self._open(self._reconnect)

    def _open(self, patience: float) -> Session:
        until = time.monotonic() + patience
        pause = 0.01
        while True:
            with self._lock:
                if self._closed:
                    raise ClosedError("the client is closed")
                current = self._current
                if current is not None and current.closed is None:
                    return current
                if current is not None and not self._reconnect:
                    raise ConnectionLostError(str(current.closed))
                try:
                    return self._adopt()
                except (UnavailableError, ConnectionLostError):
                    if time.monotonic() + pause > until:
                        raise
            time.sleep(pause)
            pause = min(pause * 1.5, 0.5)

    def _adopt(self) -> Session:
        me = weakref.ref(self)

        def ended(session: Session) -> None:
            client = me()
            if client is not None:
                client._lost(session)

        again = self._current is not None
        session = Session(self.path, on_end=ended, uid=self._uid)
        self._current = session
        self._box[:] = [session]
        if again:
            session.later(lambda: _resume(me, session))
        return session

    def _lost(self, session: Session) -> None:
        """Called by the session that has ended: connects again in the background if there is something to take
        again."""
        if self._closed or session is not self._current:
            return
        watchers = self._watchers.members()
        for watcher in watchers:
            watcher.lost()
        offers = [*self._offers]
        for offer in offers:
            offer.lost()
        if self._reconnect and (watchers or offers or len(self._leases) or len(self._references)):
            threading.Thread(
                target=_look_again, args=(weakref.ref(self),), name="sharedtensor reconnect", daemon=True
            ).start()

    def close(self) -> None:
        """Ends the connection. Tensors stay valid while they are referenced. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for watcher in self._watchers.members():
            watcher.fail(ClosedError("the client is closed"))
        for offer in [*self._offers]:
            offer.fail(ClosedError("the client is closed"))
            offer.lost()
        if self._finalizer.detach() is not None:
            for session in self._box:
                session.close()
        self._pool.close()

    def _forked(self) -> None:
        """Ends what waits for the connection, in a forked child."""
        error = ForkError("this client was made before the fork: connect again in this process")
        for watcher in self._watchers.members():
            watcher.fail(error)
        for offer in [*self._offers]:
            offer.fail(error)

    def __reduce__(self) -> Any:
        from . import pickling

        return pickling.client, (
            self.path,
            self._framework,
            self._timeout,
            self._reconnect,
            self._uid,
            self._keep,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def server(self) -> messages.Hello:
        """The server's hello: its version, process and devices."""
        return self._session().hello

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        session = self._current
        return session is not None and session.closed is None

    def _start(self, operation: Operation[T], session: Session, timeout: float | None) -> Pending:
        discard = operation.discard

        def late(frame: Frame) -> None:
            if discard is not None:
                discard(frame, session)

        try:
            pending = session.start(operation.op, operation.body, files=operation.files, timeout=timeout, discard=late)
        except BaseException:
            operation.close()
            raise
        return pending

    def _run(self, operation: Operation[T], *, session: Session | None = None, timeout: float | None = None) -> T:
        """Sends an operation, waits, and makes its result. Repeats it once over a new connection where that is
        harmless."""
        timeout = self._timeout if timeout is None else timeout
        again = session is None and operation.repeatable and bool(self._reconnect)
        try:
            session = session or self._session()
            try:
                frame = session.wait(self._start(operation, session, timeout), timeout)
            except (ConnectionLostError, UnavailableError):
                if not again or session.closed is None or self._closed:
                    raise
                session = self._session()
                frame = session.wait(self._start(operation, session, timeout), timeout)
        except Error as err:
            operation.explain(err)
            raise
        finally:
            operation.close()
        return operation.take(frame, session)

    # ---- models

    def acquire(
        self,
        name: str,
        version: int = 0,
        *,
        framework: str | None = None,
        wait: float = 0.0,
        timeout: float | None = None,
    ) -> Model:
        """Attaches to a version, by one message and one mapping for each storage.

        :param version: 0 for the newest.
        :param framework: "torch" or "numpy", what its tensors are.
        :param wait: seconds to wait for a name that is not published yet.

        Raises NotFoundError, VersionNotFoundError. The model is a read-only mapping of names to tensors in the owner's
        memory.
        """
        chosen = frameworks.choose(framework or self._framework)
        if wait:
            with self.follow(name) as follower:
                follower._wait(0, time.monotonic() + wait)
        return self._run(catalog.acquire(name, version, chosen, self._leases), timeout=timeout)

    def publish(
        self,
        name: str,
        state_dict: Mapping[str, Any],
        *,
        source: str = "",
        metadata: Mapping[str, str] | None = None,
        digests: bool = False,
        owner_digests: bool = False,
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
        """
        session = self._session()
        operation = catalog.publish(
            name,
            state_dict,
            session,
            self._pool,
            source=source,
            metadata=metadata or {},
            digests=digests,
            owner_digests=owner_digests,
        )
        return self._run(operation, session=session, timeout=timeout)

    def digest(self, name: str, version: int = 0, *, timeout: float | None = None) -> bytes:
        """Waits for the digest of a version that its owner computes, and returns its 32 bytes.

        Raises NotFoundError for an unknown version, and for one published without `owner_digests`.
        """
        session = self._session()
        return self._run(operations.digests(name, version, session), session=session, timeout=timeout)

    def withdraw(self, name: str) -> None:
        """Withdraws a name. Clients that hold a version of it keep that version. Raises NotFoundError."""
        self._run(operations.withdraw(name))

    def list(self) -> catalog.Models:
        """Returns the published names, with their versions and holders."""
        found = self._run(catalog.listing())
        while found.next != ("", 0):
            found.add(self._run(catalog.listing(*found.next)))
        return found

    def inspect(self, name: str, version: int = 0) -> Inspection:
        """Returns the versions of a name and the tensors of one version, without attaching."""
        return Inspection(self._run(operations.info(name, version, True)))

    def watch(self, *names: str) -> Watch:
        """Returns an iterator over events of names, or of all names. It begins with their present state."""
        return Watch(self, names)

    def follow(self, name: str, *, framework: str | None = None) -> Follower:
        """Returns a follower of a name: it returns the newest version and waits for newer ones."""
        return Follower(self, name, framework)

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

    def endpoint(
        self, function: Callable[..., T] | None = None, /, *, name: str = "", **how: Any
    ) -> Callable[..., Any]:
        """Marks a function for `serve`: ``@c.endpoint``, or with the fields of `Function`, ``@c.endpoint(cache=True)``.
        Its name is that of the function, if none is given."""

        def mark(function: Callable[..., T]) -> Callable[..., T]:
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
    ) -> Any:
        """Calls a function of the owner and returns its result.

        :param value: the argument, if it is not a struct, or if a field of it has the name of one of these parameters.
        :param fields: the fields of the argument, with tensors at any place. Tensors over shared memory (of models, of
            results, of `empty`) are passed in place; others are copied once, into shared memory.
        :param writable: lets the function write into tensors made by `empty`.
        :param timeout: in seconds; the server stops the function then.

        Tensors of the result are the function's own memory, read-only. They keep the reference to a managed
        result.
        """
        return self._call(endpoint, value, fields, timeout, writable, framework)[0]

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
        return calls.object_of(endpoint, self._call(endpoint, value, fields, timeout, False, framework))

    def _call(
        self,
        endpoint: str,
        value: Any,
        fields: dict[str, Any],
        timeout: float | None,
        writable: bool,
        framework: str | None,
    ) -> tuple[Any, Object | None]:
        session = self._session()
        chosen = frameworks.choose(framework or self._framework)
        operation = calls.call(
            endpoint, calls.argument(value, fields), session, self._pool, chosen, self._track, writable=writable
        )
        return self._run(operation, session=session, timeout=timeout)

    def _track(self, reference: Reference) -> None:
        self._references.add(reference)
        session = reference.session
        if session is not None:
            objects.watch(session, self._references)  # once for each session

    def stream(
        self, endpoint: str, value: Any = NOTHING, /, *, framework: str | None = None, **fields: Any
    ) -> Stream[Any]:
        """Calls a function that yields results and returns an iterator over them as they come. Closing it stops the
        function."""
        session = self._session()
        return Stream(
            endpoint,
            calls.argument(value, fields),
            session,
            self._pool,
            frameworks.choose(framework or self._framework),
            owner=self,
        )

    def endpoints(self) -> Endpoints:
        """Returns the functions that the owner has, with their arguments and results."""
        return self._run(
            operations.mapped(
                Op.ENDPOINTS, messages.Endpoints(), messages.EndpointsListed, lambda a: Endpoints(a.endpoints)
            )
        )

    def invalidate(self, endpoint: str, value: Any = NOTHING, /, **fields: Any) -> int:
        """Drops cached results: that of one call, or with no argument all of an endpoint. Returns how many."""
        if value is NOTHING and not fields:
            return self._run(operations.invalidate(endpoint))
        session = self._session()
        return self._run(
            calls.invalidate(endpoint, calls.argument(value, fields), session, self._pool), session=session
        )

    # ---- tasks

    def submit(self, endpoint: str, value: Any = NOTHING, /, **fields: Any) -> Task:
        """Starts a call as a task, which continues when this client leaves, and returns it."""
        session = self._session()
        return Task(
            self, self._run(tasks.submit(endpoint, calls.argument(value, fields), session, self._pool), session=session)
        )

    def task(self, id: str) -> Task:
        """Returns a task by its id. Raises TaskNotFoundError."""
        return Task(self, self._run(tasks.info(id)))

    def tasks(self, states: Iterable[str] = (), *, endpoint: str = "", mine: bool = False) -> TaskList:
        """Returns the tasks of the owner, by state, by endpoint, or of this connection only."""
        return self._run(tasks.listing([*states], endpoint, mine))

    def watch_tasks(self, *, id: str = "", endpoint: str = "", mine: bool = False) -> TaskWatch:
        """Returns an iterator over tasks as they change, beginning with the present ones."""
        return TaskWatch(self._session(), id, endpoint, mine, owner=self)

    def _result_of(self, id: str) -> tuple[Any, Object | None]:
        return self._run(tasks.result(id, frameworks.choose(self._framework), self._track))

    # ---- objects and the server

    def objects(self, *endpoints: str) -> objects.Objects:
        """Returns the managed objects of the owner and their holders."""
        found = objects.Objects()
        after = 0
        while True:
            page = self._run(objects.listing([*endpoints], after))
            found.extend(page.objects)
            if not page.next:
                return found
            after = page.next

    def object(self, id: str) -> messages.ObjectInfo:
        """Returns the description of a managed object. Raises StaleHandleError if it is gone."""
        return self._run(objects.info(id))

    def destroy(self, id: str) -> messages.ObjectInfo:
        """Destroys an object although it has holders. For the server's own user and root. Returns its last state."""
        return self._run(objects.destroy(id))

    def ping(self) -> float:
        """Returns the round-trip time of a request in seconds."""
        begin = time.perf_counter()
        self._run(operations.ping())
        return time.perf_counter() - begin

    def info(self) -> ServerInfo:
        """Returns the state of the server: sessions, memory, endpoints, counters."""
        return self._run(operations.mapped(Op.SERVER_INFO, None, messages.ServerInfo, ServerInfo))

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if self.connected else "not connected"
        return f"<sharedtensor.Client of {self.path}, {state}>"


class Inspection:
    """What is known of a name, as `Client.inspect` returns it.

    :ivar model: its versions and their holders.
    :ivar specs: the tensors of the requested version.
    """

    def __init__(self, answer: messages.InfoResult) -> None:
        self.model = answer.model
        self.specs: list[manifest.TensorSpec] = []
        self.metadata: dict[str, str] = {}
        if answer.manifest is not None:
            table, self.metadata = manifest.unpack(answer.manifest)
            self.specs = list(table.values())

    def __repr__(self) -> str:
        return f"{catalog.Models(messages.Listed(models=[self.model]))!r}\n\n{self._tensors()}"

    def _tensors(self) -> str:
        rows = [
            (s.name, str(s.dtype), "×".join(map(str, s.shape)) or "scalar", tables.size(s.nbytes), s.digest.hex()[:12])
            for s in self.specs
        ]
        return str(tables.Table(["tensor", "type", "shape", "bytes", "digest"], rows))


def _close_later(box: list[Session]) -> None:
    """Has sessions closed by their workers: a finalizer may run in a thread that has one of their locks."""
    for session in box:
        session.later(session.close)


def _resume(me: weakref.ref[Client], session: Session) -> None:
    """Renews over a new session what the client had over the last one: watches, offers, leases, references."""
    client = me()
    if client is None:
        return
    for watcher in client._watchers.members():
        try:
            watcher.begin(session)
        except Error as err:
            if session.closed is None:
                watcher.fail(err)
    for offer in [*client._offers]:
        try:
            offer.begin(session)
        except Error as err:
            if session.closed is None:
                offer.fail(err)
    client._leases.take_again(session)
    client._references.take_again(session)
    if len(client._references):
        objects.watch(session, client._references)


def _look_again(me: weakref.ref[Client]) -> None:
    """Reconnects, until the server is back or the client has nothing to renew there."""
    pause = 0.02
    while True:
        client = me()
        if client is None or client._closed or client.connected:
            return
        try:
            client._open(0)
            return
        except (UnavailableError, ConnectionLostError, DeadlineExceededError):
            pass
        except Error:
            return
        del client
        time.sleep(pause)
        pause = min(pause * 1.5, 1.0)
