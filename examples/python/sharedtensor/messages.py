"""Messages, one class each, the n-th field with the key n, or with that of KEYS.

Made by make_messages.py from wire/fields.json.
What they mean is in wire/PROTOCOL.md. Times are nanoseconds since 1970, durations nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from .message import I32, I64, U8, U16, U32, U64, UUID, File, Message, Size


@dataclass(kw_only=True, slots=True)
class Storage(Message):
    """A storage of a manifest, an array of its three fields."""

    AS_ARRAY: ClassVar[bool] = True

    nbytes: Size
    device: UUID
    type: I32


@dataclass(kw_only=True, slots=True)
class Acquire(Message):
    KEYS: ClassVar[dict[str, int]] = {"device": 4, "part": 5}

    name: str
    version: U64 = 0
    device: UUID | None = None
    part: Part | None = None


@dataclass(kw_only=True, slots=True)
class Acquired(Message):
    lease: U64
    name: str
    version: U64
    manifest: Manifest
    handles: list[Handle]
    source: str = ""
    digest: bytes = b""


@dataclass(kw_only=True, slots=True)
class Answer(Message):
    call: U64
    value: Any = None
    handles: list[Handle] = field(default_factory=list)
    error: ErrorMessage | None = None
    more: bool = False


@dataclass(kw_only=True, slots=True)
class Answered(Message):
    pass


@dataclass(kw_only=True, slots=True)
class Call(Message):
    endpoint: str
    args: Any = None
    handles: list[Handle] = field(default_factory=list)
    slabs_returned: list[U64] = field(default_factory=list)
    slabs_dropped: list[U64] = field(default_factory=list)
    label: str = ""


@dataclass(kw_only=True, slots=True)
class Cancel(Message):
    reason: str = ""


@dataclass(kw_only=True, slots=True)
class Capabilities(Message):
    transport: str = ""
    handles: list[HandleSupport] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class DeviceInfo(Message):
    uuid: UUID
    type: I32
    index: I32 = 0
    name: str = ""


@dataclass(kw_only=True, slots=True)
class Digested(Message):
    version: U64
    whole: bytes
    tensors: bytes = b""


@dataclass(kw_only=True, slots=True)
class Digests(Message):
    name: str
    version: U64 = 0
    part: Part | None = None


@dataclass(kw_only=True, slots=True)
class EndpointInfo(Message):
    name: str
    task: bool = False
    managed: bool = False
    stream: bool = False
    cache: bool = False
    cache_key: str = ""
    single_flight: bool = False
    serialized: bool = False
    timeout: Size = 0
    in_: str = ""
    out: str = ""
    in_fields: list[FieldInfo] = field(default_factory=list)
    out_fields: list[FieldInfo] = field(default_factory=list)
    uncached: U64 = 0
    workers: list[EndpointWorker] = field(default_factory=list)
    writable: bool = False
    in_tensor: str = ""
    out_tensor: str = ""
    batch_max: U64 = 0
    batch_delay: Size = 0


@dataclass(kw_only=True, slots=True)
class EndpointStats(Message):
    name: str
    runs: U64 = 0
    errors: U64 = 0
    p50: Size = 0
    p90: Size = 0
    p99: Size = 0
    calls: U64 = 0
    cache_hits: U64 = 0
    failures: U64 = 0
    total: Size = 0
    uncached: U64 = 0
    workers: U64 = 0
    durations: list[U64] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class EndpointWorker(Message):
    session: U64
    pid: I32 = 0
    uid: U32 = 0
    label: str = ""
    running: U64 = 0
    most: U64 = 0
    since: I64 = 0


@dataclass(kw_only=True, slots=True)
class Endpoints(Message):
    pass


@dataclass(kw_only=True, slots=True)
class EndpointsListed(Message):
    endpoints: list[EndpointInfo]


@dataclass(kw_only=True, slots=True)
class ErrorMessage(Message):
    code: U16
    message: str
    type: str = ""
    data: Any = None


@dataclass(kw_only=True, slots=True)
class ErrorClass(Message):
    code: U16
    type: str = ""


@dataclass(kw_only=True, slots=True)
class ErrorDetails(Message):
    classes: list[ErrorClass] = field(default_factory=list)
    cause: ErrorMessage | None = None
    object: str = ""
    server: str = ""
    reason: str = ""
    detail: str = ""


@dataclass(kw_only=True, slots=True)
class Event(Message):
    seq: U64
    kind: U8
    name: str
    version: U64 = 0


@dataclass(kw_only=True, slots=True)
class FieldInfo(Message):
    name: str
    type: str = ""
    optional: bool = False
    fields: list[FieldInfo] = field(default_factory=list)
    tensor: str = ""


@dataclass(kw_only=True, slots=True)
class Goodbye(Message):
    code: U16 = 0
    reason: str = ""


@dataclass(kw_only=True, slots=True)
class Handle(Message):
    kind: str
    device: UUID
    nbytes: Size
    offset: Size
    blob: bytes = b""
    file: File
    name: str = ""
    storage: U64 = 0
    version: U64 = 0
    slab: U64 = 0
    slab_bytes: Size = 0


@dataclass(kw_only=True, slots=True)
class HandleSupport(Message):
    device: UUID
    kind: str
    supported: bool = False
    reason: str = ""


@dataclass(kw_only=True, slots=True)
class Hello(Message):
    protocol: U32
    oldest: U32
    features: list[str] = field(default_factory=list)
    server: str = ""
    version: str = ""
    pid: I32 = 0
    devices: list[DeviceInfo] = field(default_factory=list)
    label: str = ""
    catalog: str = ""


@dataclass(kw_only=True, slots=True)
class Holder(Message):
    session: U64
    leases: U64
    pid: I32 = 0
    uid: U32 = 0
    label: str = ""
    since: I64 = 0
    placements: list[UUID] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class Incomplete(Message):
    name: str
    of: U64
    parts: list[U64]
    nbytes: U64 = 0
    started_at: I64 = 0
    ends_at: I64 = 0
    key: str = ""


@dataclass(kw_only=True, slots=True)
class Info(Message):
    name: str
    version: U64 = 0
    manifest: bool = False


@dataclass(kw_only=True, slots=True)
class InfoResult(Message):
    model: ModelInfo
    manifest: Manifest | None = None
    loading: Loading | None = None


@dataclass(kw_only=True, slots=True)
class InvalidateEndpoint(Message):
    endpoint: str


@dataclass(kw_only=True, slots=True)
class Invalidated(Message):
    count: U64


@dataclass(kw_only=True, slots=True)
class LimitUse(Message):
    name: str
    client: I64 = 0
    all: I64 = 0
    most: I64 = 0
    used: I64 = 0
    refused: U64 = 0
    reason: str = ""


@dataclass(kw_only=True, slots=True)
class List(Message):
    after: str = ""
    after_version: U64 = 0


@dataclass(kw_only=True, slots=True)
class Listed(Message):
    models: list[ModelInfo]
    loading: list[Loading] = field(default_factory=list)
    next: str = ""
    next_version: U64 = 0
    not_adopted: list[NotAdopted] = field(default_factory=list)
    incomplete: list[Incomplete] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class Loading(Message):
    name: str
    state: U8
    done: U64 = 0
    total: U64 = 0
    started_at: I64 = 0
    updated_at: I64 = 0
    source: str = ""
    error: ErrorMessage | None = None


@dataclass(kw_only=True, slots=True)
class Manifest(Message):
    names: str
    name_lengths: bytes
    dtypes: bytes
    ranks: bytes
    dims: bytes
    storage: bytes
    offsets: bytes
    strided: bytes = b""
    strides: bytes = b""
    digests: bytes = b""
    storages: list[Storage]
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class MemoryUse(Message):
    device: UUID
    type: I32
    use: str
    nbytes: U64 = 0
    storages: U64 = 0


@dataclass(kw_only=True, slots=True)
class ModelInfo(Message):
    name: str
    versions: list[VersionInfo]
    withdrawn: bool = False
    more: U64 = 0


@dataclass(kw_only=True, slots=True)
class NotAdopted(Message):
    name: str
    version: U64
    reason: str
    nbytes: U64 = 0
    withdrawn: bool = False
    published_at: I64 = 0
    source: str = ""


@dataclass(kw_only=True, slots=True)
class Object(Message):
    id: str


@dataclass(kw_only=True, slots=True)
class ObjectGone(Message):
    id: str
    reason: str = ""


@dataclass(kw_only=True, slots=True)
class ObjectHolder(Message):
    session: U64
    refs: U64
    pid: I32 = 0
    uid: U32 = 0
    label: str = ""
    since: I64 = 0


@dataclass(kw_only=True, slots=True)
class ObjectInfo(Message):
    id: str
    server: str
    endpoint: str
    cache_key: str = ""
    refs: U64
    mine: U64 = 0
    nbytes: U64 = 0
    created_at: I64
    accessed_at: I64
    token: U64 = 0
    holders: list[ObjectHolder] = field(default_factory=list)
    sessions: U64 = 0
    devices: list[DeviceInfo] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class ObjectRef(Message):
    id: str
    server: str
    token: U64 = 0


@dataclass(kw_only=True, slots=True)
class ObjectReleased(Message):
    id: str
    released: bool = False
    destroyed: bool = False
    refs: U64 = 0
    token: U64 = 0
    error: ErrorMessage | None = None


@dataclass(kw_only=True, slots=True)
class Objects(Message):
    endpoints: list[str] = field(default_factory=list)
    after: U64 = 0
    limit: U64 = 0


@dataclass(kw_only=True, slots=True)
class ObjectsListed(Message):
    objects: list[ObjectInfo]
    next: U64 = 0


@dataclass(kw_only=True, slots=True)
class ObjectsReleased(Message):
    objects: list[ObjectReleased]


@dataclass(kw_only=True, slots=True)
class Offer(Message):
    endpoints: list[EndpointInfo]
    calls: U64 = 0


@dataclass(kw_only=True, slots=True)
class OfferEvent(Message):
    kind: U8
    call: U64
    endpoint: str = ""
    args: Any = None
    handles: list[Handle] = field(default_factory=list)
    timeout: Size = 0
    reason: str = ""


@dataclass(kw_only=True, slots=True)
class Offering(Message):
    calls: U64


@dataclass(kw_only=True, slots=True)
class Origin(Message):
    pid: I32 = 0
    uid: U32 = 0
    label: str = ""
    source: str = ""


@dataclass(kw_only=True, slots=True)
class Part(Message):
    index: U64 = 0
    of: U64 = 0
    key: str = ""


@dataclass(kw_only=True, slots=True)
class Ping(Message):
    timestamp: I64 = 0


@dataclass(kw_only=True, slots=True)
class Placement(Message):
    device: DeviceInfo
    nbytes: U64
    making: bool = False
    made_at: I64 = 0
    hits: U64 = 0
    holders: U64 = 0
    unused_since: I64 = 0


@dataclass(kw_only=True, slots=True)
class PlacementDevice(Message):
    device: DeviceInfo
    budget: U64
    keep: Size = 0
    nbytes: U64 = 0
    placements: U64 = 0
    hits: U64 = 0
    copies: U64 = 0
    copied_bytes: U64 = 0
    copy_time: Size = 0
    evictions: U64 = 0
    failures: U64 = 0


@dataclass(kw_only=True, slots=True)
class Pong(Message):
    timestamp: I64 = 0


@dataclass(kw_only=True, slots=True)
class Publish(Message):
    name: str
    manifest: Manifest
    handles: list[Handle]
    source: str = ""
    digests: bool = False
    after: U64 = 0
    retain: Retention | None = None
    current: U64 | None = None
    part: Part | None = None


@dataclass(kw_only=True, slots=True)
class Published(Message):
    version: U64


@dataclass(kw_only=True, slots=True)
class Reference(Message):
    id: str
    endpoint: str = ""
    refs: U64 = 0
    nbytes: U64 = 0


@dataclass(kw_only=True, slots=True)
class Refusals(Message):
    right: str
    count: U64


@dataclass(kw_only=True, slots=True)
class Release(Message):
    leases: list[U64]


@dataclass(kw_only=True, slots=True)
class ReleaseObjects(Message):
    ids: list[str]
    tokens: list[U64] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class Released(Message):
    count: U64


@dataclass(kw_only=True, slots=True)
class Request(Message):
    op: U16
    timeout: Size = 0
    body: Any = None
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class Retention(Message):
    versions: U64 = 0
    age: Size = 0
    nbytes: U64 = 0


@dataclass(kw_only=True, slots=True)
class ReturnSlabs(Message):
    returned: list[U64] = field(default_factory=list)
    dropped: list[U64] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class Returned(Message):
    value: Any = None
    handles: list[Handle] = field(default_factory=list)
    object: ObjectRef | None = None
    cached: bool = False


@dataclass(kw_only=True, slots=True)
class Rollback(Message):
    name: str
    version: U64 = 0


@dataclass(kw_only=True, slots=True)
class ServerInfo(Message):
    server: str
    version: str = ""
    label: str = ""
    socket: str = ""
    pid: I32 = 0
    parent_pid: I32 = 0
    started_at: I64 = 0
    ready: bool = False
    devices: list[DeviceInfo] = field(default_factory=list)
    stats: ServerStats
    endpoints: list[EndpointStats] = field(default_factory=list)
    sessions: list[SessionInfo] = field(default_factory=list)
    kind: str = ""
    running: bool = False
    uptime: Size = 0
    device_index: I32 = 0
    capabilities: Capabilities
    memory: list[MemoryUse] = field(default_factory=list)
    limits: list[LimitUse] = field(default_factory=list)
    refusals: list[Refusals] = field(default_factory=list)
    not_adopted: list[NotAdopted] = field(default_factory=list)
    placements: list[PlacementDevice] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class ServerStats(Message):
    requests: U64 = 0
    errors: U64 = 0
    cache_hits: U64 = 0
    cache_misses: U64 = 0
    cache_joins: U64 = 0
    cache_invalidations: U64 = 0
    cache_entries: U64 = 0
    cache_bytes: U64 = 0
    inflight: U64 = 0
    objects: U64 = 0
    task_submissions: U64 = 0
    tasks: U64 = 0
    tasks_running: U64 = 0
    models: U64 = 0
    versions: U64 = 0
    leases: U64 = 0
    watchers: U64 = 0
    bytes_owned: U64 = 0
    bytes_mapped: U64 = 0
    clients: U64 = 0
    cached_objects: U64 = 0
    cache_failures: U64 = 0
    cache_evictions: U64 = 0
    cache_expirations: U64 = 0
    tasks_pending: U64 = 0
    tasks_completed: U64 = 0
    tasks_failed: U64 = 0
    tasks_cancelled: U64 = 0
    tasks_expired: U64 = 0
    slabs_reused: U64 = 0
    slabs_fresh: U64 = 0
    slabs_refused: U64 = 0
    pool_slabs: U64 = 0
    pool_bytes: U64 = 0
    pool_reused: U64 = 0
    pool_fresh: U64 = 0
    pool_busy: U64 = 0


@dataclass(kw_only=True, slots=True)
class SessionInfo(Message):
    session: U64
    pid: I32 = 0
    uid: U32 = 0
    label: str = ""
    since: I64 = 0
    leases: U64 = 0
    nbytes: U64 = 0
    objects: U64 = 0
    requests: U64 = 0
    self: bool = False
    references: list[Reference] = field(default_factory=list)
    offers: U64 = 0


@dataclass(kw_only=True, slots=True)
class SlabsGone(Message):
    slabs: list[U64]


@dataclass(kw_only=True, slots=True)
class SlabsReturned(Message):
    pass


@dataclass(kw_only=True, slots=True)
class StreamItem(Message):
    value: Any = None
    handles: list[Handle] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class StreamMore(Message):
    stream: U64
    items: U64


@dataclass(kw_only=True, slots=True)
class StreamMoreDone(Message):
    pass


@dataclass(kw_only=True, slots=True)
class Task(Message):
    id: str
    after: U64 = 0


@dataclass(kw_only=True, slots=True)
class TaskCancelled(Message):
    cancelled: bool = False


@dataclass(kw_only=True, slots=True)
class TaskEvent(Message):
    kind: U8
    task: TaskInfo | None = None


@dataclass(kw_only=True, slots=True)
class TaskInfo(Message):
    id: str
    endpoint: str
    state: str
    seq: U64
    created_at: I64
    started_at: I64 = 0
    finished_at: I64 = 0
    done: I64 = 0
    total: I64 = 0
    message: str = ""
    error: ErrorMessage | None = None
    session: U64 = 0
    object: str = ""
    label: str = ""


@dataclass(kw_only=True, slots=True)
class Tasks(Message):
    states: list[str] = field(default_factory=list)
    endpoint: str = ""
    mine: bool = False


@dataclass(kw_only=True, slots=True)
class TasksListed(Message):
    tasks: list[TaskInfo]


@dataclass(kw_only=True, slots=True)
class Unwatch(Message):
    watch: U64


@dataclass(kw_only=True, slots=True)
class Unwatched(Message):
    pass


@dataclass(kw_only=True, slots=True)
class VersionInfo(Message):
    version: U64
    nbytes: U64
    tensors: U64
    current: bool = False
    published_at: I64 = 0
    origin: Origin
    holders: list[Holder] = field(default_factory=list)
    devices: list[DeviceInfo] = field(default_factory=list)
    sessions: U64 = 0
    withdrawn: bool = False
    digest_state: U8 = 0
    digest: bytes = b""
    placements: list[Placement] = field(default_factory=list)
    parts: U64 = 0


@dataclass(kw_only=True, slots=True)
class Watch(Message):
    names: list[str] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class WatchObjects(Message):
    pass


@dataclass(kw_only=True, slots=True)
class WatchTasks(Message):
    id: str = ""
    endpoint: str = ""
    mine: bool = False


@dataclass(kw_only=True, slots=True)
class Watching(Message):
    pass


@dataclass(kw_only=True, slots=True)
class WatchingObjects(Message):
    pass


@dataclass(kw_only=True, slots=True)
class WatchingTasks(Message):
    pass


@dataclass(kw_only=True, slots=True)
class Withdraw(Message):
    name: str
    current: U64 | None = None


@dataclass(kw_only=True, slots=True)
class Withdrawn(Message):
    pass
