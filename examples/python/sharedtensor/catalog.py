"""Acquiring, publishing and listing."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingABC
from typing import TYPE_CHECKING, Any

from . import cbor, forks, layout, manifest, messages, op, placing, tables, version_parts
from .errors import Error
from .frames import Frame
from .frameworks import Framework
from .importing import check_storages, device_of, identities, import_handles
from .lease import Lease, release_late
from .manifest import TensorSpec
from .memory import Slab, SlabPools, import_memfd
from .models import Model
from .op import Op
from .operations import Operation, Steps, mapped, require_digests
from .parts import Part
from .placing import Place
from .session import Session
from .tensors import Choice
from .version_parts import RankPart

if TYPE_CHECKING:
    from .connection import Connection


def acquire(
    name: str,
    version: int,
    framework: Framework,
    leases: Leases,
    tensors: Choice | None = None,
    device: Place = None,
    rank: RankPart | None = None,
    *,
    session: Session | None = None,
) -> Operation[Model[Any]]:
    """Takes a lease on a version, 0 for the newest, and maps its memory: all of it, or what some tensors need.

    :param device: None for the memory of the publication; see `placing.uuid_of`.
    :param rank: the part of the version to attach, None for the whole. With a device or a part the operation is for one
        session, `session`.
    """
    place, wanted = b"", None
    if device is not None:
        assert session is not None
        place = placing.uuid_of(device, session)
    if rank is not None:
        assert session is not None
        wanted = version_parts.of_reader(rank, session)

    def finish(frame: Frame, session: Session) -> Model[Any]:
        answer, lease = _leased(frame, session, place)
        lease.part, lease.digest = wanted, answer.digest
        specs, metadata = manifest.unpack(answer.manifest)
        check_storages(answer.manifest.storages, answer.handles)
        part = None if tensors is None else Part.of(specs, tensors)
        spans = None if part is None else part.spans
        private = framework == "torch"
        mappings = import_handles(answer.handles, frame, session, private=private, owner=lease, spans=spans)
        leases.add(lease)
        chosen = specs if part is None else part.moved()
        model = Model(answer.name, answer.version, lease, chosen, metadata, mappings, framework, leases)
        model.partial = part is not None
        return model

    body = messages.Acquire(name=name, version=version, device=place or None, part=wanted)
    return Operation(Op.ACQUIRE, body, finish, discard=_discard_lease, repeatable=True).named(f"acquire {name!r}")


def hold(name: str, version: int, leases: Leases) -> Operation[Lease]:
    """Takes a lease on the memory of a version's publication without mapping it."""

    def finish(frame: Frame, session: Session) -> Lease:
        lease = _leased(frame, session, b"")[1]
        leases.add(lease)
        return lease

    body = messages.Acquire(name=name, version=version)
    return Operation(Op.ACQUIRE, body, finish, discard=_discard_lease, repeatable=True).named(f"hold {name!r}")


def _leased(frame: Frame, session: Session, placement: bytes) -> tuple[messages.Acquired, Lease]:
    answer = messages.Acquired.decode(frame.body)
    lease = Lease(session, answer.lease, answer.name, answer.version)
    lease.placement = placement
    lease.memory = _identities(answer, frame, session, placement)
    return answer, lease


def _identities(answer: messages.Acquired, frame: Frame, session: Session, placement: bytes) -> list[tuple[Any, ...]]:
    return [(session.published,)] if placement else identities(answer.handles, frame, session)


def _discard_lease(frame: Frame, session: Session) -> None:
    lease = messages.Acquired.decode(frame.body).lease
    release_late(session, Op.RELEASE, messages.Release(leases=[lease]))


class Leases:
    """The leases of a client that are held, to renew them over a new connection.

    :ivar client: the client.
    """

    _lock: threading.Lock

    def __init__(self, client: weakref.ref[Connection], renew: Callable[[], None]) -> None:
        """`renew` is called after a lease was added whose session ends."""
        forks.track(self, _lock=threading.Lock)
        self.client = client
        self._renew = renew
        self._held: weakref.WeakSet[Lease] = weakref.WeakSet()

    def add(self, lease: Lease) -> None:
        """Adds one that was just taken."""
        with self._lock:
            self._held.add(lease)
        if lease.late:
            self._renew()

    def __len__(self) -> int:
        with self._lock:
            return sum(1 for lease in self._held if lease.session is not None)

    def take_again(self, session: Session) -> None:
        """Takes each lease of an earlier session anew. One whose version is gone, or is other memory by now, becomes
        stale."""
        with self._lock:
            held = [lease for lease in self._held if lease.session is not None and lease.session is not session]
        for lease in held:
            _take_again(lease, session)


def _take_again(lease: Lease, session: Session) -> None:
    try:
        wanted = messages.Acquire(name=lease.name, version=lease.version, part=lease.part)
        frame = session.request(Op.ACQUIRE, wanted, timeout=10)
    except Error as err:
        if session.closed is None:
            lease.lost(str(err))
        return
    try:
        answer = messages.Acquired.decode(frame.body)
        memory = _identities(answer, frame, session, lease.placement)
        for handle in answer.handles:
            if handle.kind == "memfd" and 0 <= handle.file < len(frame.files):
                fd, frame.files[handle.file] = frame.files[handle.file], -1
                import_memfd(fd, handle.offset, 0)  # raises for a descriptor that is no sealed memfd
        if memory == lease.memory:
            lease.taken_again(session, answer.lease)
            return
        lease.lost("another server has this version in other memory")
        session.start(Op.RELEASE, messages.Release(leases=[answer.lease]))
    except Error as err:
        lease.lost(str(err))
    finally:
        frame.close()


def publish(
    name: str,
    state_dict: MappingABC[str, Any],
    pools: SlabPools,
    session: Session,
    *,
    source: str,
    metadata: MappingABC[str, str] | None,
    digests: bool,
    owner_digests: bool,
    part: tuple[int, int] | None = None,
    part_key: str = "",
) -> Operation[int]:
    """Lays the tensors out in one slab, copies them there, and hands it over. The result is the version."""
    rank = None if part is None else version_parts.of_publisher(part, part_key, session)
    metadata = metadata or {}
    if owner_digests:
        require_digests(session)
    described = layout.describe_all(state_dict)
    if any(d.device != "cpu" for d in described.values()):
        from .cuda import publish as publish_cuda

        return publish_cuda(
            name,
            described,
            session,
            source=source,
            metadata=metadata,
            owner_digests=owner_digests,
            digests=digests,
            rank=rank,
        )
    device_of(session, op.HOST)  # raises before memory is allocated
    plan = layout.plan(described)
    pool = pools.publications
    slab = pool.take(plan.nbytes)
    try:
        plan.fill(slab)
        slab.seal()
        specs = plan.with_digests(slab) if digests else plan.specs
        made = hand_over(
            name,
            specs,
            slab,
            session,
            source=source,
            metadata=metadata,
            owner_digests=owner_digests,
            part=part,
            part_key=part_key,
        )
    except BaseException:
        pool.put(slab)
        raise
    made.done = lambda: pool.put(slab)
    return made


def hand_over(
    name: str,
    specs: Sequence[TensorSpec],
    slab: Slab,
    session: Session,
    *,
    source: str,
    metadata: MappingABC[str, str],
    owner_digests: bool,
    part: tuple[int, int] | None = None,
    part_key: str = "",
) -> Operation[int]:
    """Publishes a slab that is filled and sealed. The result is the version. The slab stays the caller's."""
    rank = None if part is None else version_parts.of_publisher(part, part_key, session)
    device = device_of(session, op.HOST)
    storages = [messages.Storage(nbytes=slab.nbytes, device=device.uuid, type=op.HOST)]
    handle = messages.Handle(kind="memfd", device=device.uuid, nbytes=slab.nbytes, offset=0, file=0)
    body = messages.Publish(
        name=name,
        manifest=manifest.pack(specs, storages, metadata),
        handles=[handle],
        source=cbor.shown(source),
        digests=owner_digests,
        part=rank,
    )
    return Operation(
        Op.PUBLISH,
        body,
        lambda frame, _: messages.Published.decode(frame.body).version,
        files=[slab.share()],
        about=f"publish {name!r}",
    )


def listing(after: str = "", after_version: int = 0) -> Operation[Models]:
    """Lists names with their versions, behind `after`. The answer may be a part; its `next` continues the list."""
    return mapped(Op.LIST, messages.List(after=after, after_version=after_version), messages.Listed, Models)


def all_models() -> Steps[Models]:
    """Lists all names with their versions, part by part."""
    found = yield listing()
    while found.next != ("", 0):
        found.add((yield listing(*found.next)))
    return found


_STATES = {1: "waiting to load", 2: "loading", 3: "failed to load"}


class Models(list[messages.ModelInfo]):
    """What is published, as `Client.list` returns it: a list that prints as a table.

    :ivar loading: what the owner is still reading, and what it could not read.
    :ivar not_adopted: kept versions that the owner could not map after its restart, with the reasons.
    """

    def __init__(self, answer: messages.Listed) -> None:
        super().__init__(answer.models)
        self.loading = answer.loading
        self.not_adopted = answer.not_adopted
        self.next = (answer.next, answer.next_version)

    def add(self, part: Models) -> None:
        """Adds the next part of the list. Versions of one name may be in both."""
        for model in part:
            if self and self[-1].name == model.name:
                self[-1].versions.extend(model.versions)
            else:
                self.append(model)
        self.loading.extend(load for load in part.loading if load not in self.loading)
        self.not_adopted.extend(lost for lost in part.not_adopted if lost not in self.not_adopted)
        self.next = part.next

    def table(self) -> tables.Table:
        """Returns one row a version."""
        rows = []
        for model in self:
            for v in model.versions:
                mark = "withdrawn" if model.withdrawn else "" if v.current else "older"
                holders = ", ".join(f"{h.label or h.pid} ({h.leases})" for h in v.holders)
                rows.append(
                    (
                        model.name,
                        str(v.version),
                        str(v.tensors),
                        tables.size(v.nbytes),
                        tables.age(v.published_at),
                        mark,
                        v.origin.source,
                        holders,
                    )
                )
        for load in self.loading:
            state = _STATES.get(load.state, "")
            percent = f" {100 * load.done // load.total} %" if load.total else ""
            why = f": {load.error.message}" if load.error is not None else ""
            rows.append(
                (
                    load.name,
                    "",
                    "",
                    tables.size(load.total),
                    tables.age(load.started_at),
                    state + percent + why,
                    load.source,
                    "",
                )
            )
        for lost in self.not_adopted:
            rows.append(
                (
                    lost.name,
                    str(lost.version),
                    "",
                    tables.size(lost.nbytes),
                    tables.age(lost.published_at),
                    f"not adopted: {lost.reason}",
                    lost.source,
                    "",
                )
            )
        return tables.Table(["name", "version", "tensors", "bytes", "age", "", "source", "held by"], rows)

    def __repr__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()
