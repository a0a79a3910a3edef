package message

import (
	"time"

	"github.com/sharedtensor/sharedtensor/wire"
)

// callSamples returns the messages of calls, tasks, objects, streams and the server.
func callSamples() []sample {
	handles := []Handle{{Kind: "memfd", Device: uuid(0x10), Bytes: 4096, File: 0}}
	promised := []Handle{{Kind: "memfd", Device: uuid(0x10), Bytes: 4096, File: 0, Storage: 3, Version: 2}}
	slabs := []Handle{{Kind: "memfd", Device: uuid(0x10), Bytes: 1000, File: 0, Slab: 1, SlabBytes: 4096},
		{Kind: "memfd", Device: uuid(0x10), Bytes: 4000, File: -1, Slab: 2}}
	named := []Handle{{Kind: "memfd", Device: uuid(0x10), Bytes: 4096, File: 0, Name: "5f0c"}}
	inline := []Handle{{Kind: HandleInline, Device: uuid(0x10), Bytes: 4, Blob: []byte{0, 0, 128, 63}, File: -1}, {Kind: HandleInline, Device: uuid(0x10), File: -1}}
	args, _ := Marshal(map[string]any{"name": "resnet", "size": 768})
	value, _ := Marshal([]any{true, "x", -1})
	failure := &Error{Code: CodeTask, Message: "task 7f failed: no memory", Type: "failed"}
	task := TaskInfo{ID: "7f", Endpoint: "load", State: "failed", Seq: 9, CreatedAt: 1_700_000_000_000_000_000, StartedAt: 1_700_000_000_000_000_001,
		FinishedAt: 1_700_000_000_000_000_002, Done: 3, Total: 4, Message: "layer 3", Error: failure, Session: 2}
	endpoint := EndpointInfo{Name: "load", Task: true, Managed: true, Stream: true, Cache: true, CacheKey: "model:{size}", SingleFlight: true,
		Serialized: true, Timeout: 5_000_000_000, In: "LoadRequest", Out: "*module.StateDict",
		InFields:  []FieldInfo{{Name: "name", Type: "string"}, {Name: "options", Type: "Options", Optional: true, Fields: []FieldInfo{{Name: "size"}}}},
		OutFields: []FieldInfo{{Name: "model", Type: "*module.StateDict"}}, Uncached: 6}
	stats := ServerStats{Requests: 1, Errors: 2, CacheHits: 3, CacheMisses: 4, CacheJoins: 5, CacheInvalidations: 6, CacheEntries: 7, CacheBytes: 8,
		Inflight: 9, Objects: 10, TaskSubmissions: 11, Tasks: 12, TasksRunning: 13, Models: 14, Versions: 15, Leases: 16, Watchers: 17,
		BytesOwned: 18, BytesMapped: 19, Clients: 20, CachedObjects: 21, CacheFailures: 22, CacheEvictions: 23, CacheExpirations: 24,
		TasksPending: 25, TasksCompleted: 26, TasksFailed: 27, TasksCancelled: 28, TasksExpired: 29}
	server := ServerInfo{Server: "8c1f", Version: "0.1.0", Label: "owner", Socket: "/run/user/1000/shared-tensor-0.sock", PID: 4242, ParentPID: 1,
		StartedAt: 1_700_000_000_000_000_000, Ready: true, Devices: []DeviceInfo{{UUID: uuid(0x10), Type: 1, Name: "host"}}, Stats: stats,
		Endpoints: []EndpointStats{{Name: "load", Runs: 2, Errors: 1, P50: 1000, P90: 2000, P99: 3000, Calls: 5, CacheHits: 3, Failures: 2,
			Total: 4000, Uncached: 1}},
		Sessions: []SessionInfo{{Session: 2, PID: 4243, UID: 1000, Label: "worker", Since: 1_700_000_000_000_000_003, Leases: 1, Bytes: 4096,
			Objects: 3, Requests: 4, References: []Reference{{ID: "a1", Endpoint: "load", Refs: 3, Bytes: 4096}}}, {Session: 1, Self: true}},
		Kind: "SharedTensorServer", Running: true, Uptime: 5_000_000_000, DeviceIndex: -1,
		Capabilities: Capabilities{Transport: "same-host", Handles: []HandleSupport{{Device: uuid(0x10), Kind: "memfd", Supported: true},
			{Device: uuid(0x20), Kind: "cuda-fd", Reason: "no driver"}}},
		Memory: []MemoryUse{{Device: uuid(0x10), Type: 1, Use: "models", Bytes: 4096, Storages: 1}}}
	object := ObjectInfo{ID: "a1", Server: "8c1f", Endpoint: "load", CacheKey: "load/model:768", Refs: 2, Mine: 1, Bytes: 4096,
		CreatedAt: 1_700_000_000_000_000_000, AccessedAt: 1_700_000_000_000_000_004}
	held := object
	held.Sessions, held.Devices = 2, []DeviceInfo{{UUID: uuid(0x10), Type: 1, Name: "host"}}
	held.Holders = []ObjectHolder{{Session: 3, Refs: 2, PID: 4243, UID: 1000, Label: "worker", Since: 1_700_000_000_000_000_001}, {Session: 4, Refs: 1}}
	worked := EndpointInfo{Name: "scale", SingleFlight: true, Workers: []EndpointWorker{
		{Session: 5, PID: 4245, UID: 1000, Label: "worker", Running: 2, Most: 8, Since: 1_700_000_000_000_000_003}, {Session: 6}}}
	return []sample{
		{"call", wire.KindRequest, OpCall, 1, &Call{Endpoint: "load", Args: args, Handles: promised}},
		{"call-least", wire.KindRequest, OpCall, 0, &Call{Endpoint: "load"}},
		{"call-slabs", wire.KindRequest, OpCall, 0, &Call{Endpoint: "load", SlabsReturned: []uint64{1, 1 << 40}, SlabsDropped: []uint64{2}}},
		{"submit-label", wire.KindRequest, OpSubmit, 0, &Call{Endpoint: "load", Args: args, Label: "token:alice"}},
		{"returned-slabs", wire.KindResponse, OpCall, 1, &Returned{Value: value, Handles: slabs}},
		{"call-inline", wire.KindRequest, OpCall, 0, &Call{Endpoint: "load", Args: args, Handles: inline}},
		{"returned-inline", wire.KindResponse, OpCall, 0, &Returned{Value: value, Handles: inline[:1]}},
		{"return-slabs", wire.KindRequest, OpReturnSlabs, 0, &ReturnSlabs{Returned: []uint64{1, 3}, Dropped: []uint64{2}}},
		{"slabs-returned", wire.KindResponse, OpReturnSlabs, 0, &SlabsReturned{}},
		{"slabs-gone", wire.KindEvent, 0, 0, &SlabsGone{Slabs: []uint64{1, 3}}},
		{"returned", wire.KindResponse, OpCall, 1, &Returned{Value: value, Handles: named, Object: &ObjectRef{ID: "a1", Server: "8c1f"}, Cached: true}},
		{"endpoints", wire.KindRequest, OpEndpoints, 0, &Endpoints{}},
		{"endpoints-listed", wire.KindResponse, OpEndpoints, 0, &EndpointsListed{Endpoints: []EndpointInfo{endpoint, {Name: "ping"}}}},
		{"server-info", wire.KindResponse, OpServerInfo, 0, &server},
		{"server-info-slabs", wire.KindResponse, OpServerInfo, 0, &ServerInfo{Server: "8c1f", Stats: ServerStats{SlabsReused: 30, SlabsFresh: 31,
			SlabsRefused: 32, PoolSlabs: 33, PoolBytes: 34, PoolReused: 35, PoolFresh: 36, PoolBusy: 37}}},
		{"task", wire.KindRequest, OpTaskWait, 0, &Task{ID: "7f", After: 8}},
		{"task-info", wire.KindResponse, OpTaskWait, 0, &task},
		{"task-info-object", wire.KindResponse, OpTask, 0, &TaskInfo{ID: "80", Endpoint: "load", State: "completed", Seq: 3, CreatedAt: 1, StartedAt: 2,
			FinishedAt: 3, Object: "a1"}},
		{"task-info-label", wire.KindResponse, OpSubmit, 0, &TaskInfo{ID: "81", Endpoint: "load", State: "pending", Seq: 1, CreatedAt: 1,
			Label: "token:alice"}},
		{"task-cancelled", wire.KindResponse, OpTaskCancel, 0, &TaskCancelled{Cancelled: true}},
		{"tasks", wire.KindRequest, OpTasks, 0, &Tasks{States: []string{"pending", "running"}, Endpoint: "load", Mine: true}},
		{"tasks-listed", wire.KindResponse, OpTasks, 0, &TasksListed{Tasks: []TaskInfo{task}}},
		{"invalidate-endpoint", wire.KindRequest, OpInvalidateEndpoint, 0, &InvalidateEndpoint{Endpoint: "load"}},
		{"invalidated", wire.KindResponse, OpInvalidateEndpoint, 0, &Invalidated{Count: 3}},
		{"object", wire.KindRequest, OpObjectInfo, 0, &Object{ID: "a1"}},
		{"object-info", wire.KindResponse, OpObjectInfo, 0, &object},
		{"release-objects", wire.KindRequest, OpObjectRelease, 0, &ReleaseObjects{IDs: []string{"a1", "a1", "b2"}}},
		{"objects-released", wire.KindResponse, OpObjectRelease, 0, &ObjectsReleased{Objects: []ObjectReleased{
			{ID: "a1", Released: true, Refs: 1}, {ID: "a1", Released: true, Destroyed: true}, {ID: "b2"}}}},
		{"objects-released-why", wire.KindResponse, OpObjectRelease, 0, &ObjectsReleased{Objects: []ObjectReleased{
			{ID: "b2", Refs: 1, Error: &Error{Code: CodePermissionDenied, Message: "this session has no reference to object b2", Type: "permission"}}}}},
		{"watch-objects", wire.KindRequest, OpObjectWatch, 0, &WatchObjects{}},
		{"watching-objects", wire.KindResponse, OpObjectWatch, 0, &WatchingObjects{}},
		{"object-gone", wire.KindEvent, OpObjectWatch, 0, &ObjectGone{ID: "a1"}},
		{"stream-item", wire.KindEvent, OpStream, 1, &StreamItem{Value: value, Handles: handles}},
		{"stream-more", wire.KindRequest, OpStreamMore, 0, &StreamMore{Stream: 12, Items: 8}},
		{"stream-more-done", wire.KindResponse, OpStreamMore, 0, &StreamMoreDone{}},
		{"watch-tasks", wire.KindRequest, OpTaskWatch, 0, &WatchTasks{ID: "7f", Endpoint: "load", Mine: true}},
		{"watching-tasks", wire.KindResponse, OpTaskWatch, 0, &WatchingTasks{}},
		{"task-event", wire.KindEvent, OpTaskWatch, 0, &TaskEvent{Kind: TaskChanged, Task: &task}},
		{"task-event-missed", wire.KindEvent, OpTaskWatch, 0, &TaskEvent{Kind: TasksMissed}},
		{"objects", wire.KindRequest, OpObjects, 0, &Objects{Endpoints: []string{"load", "build"}, After: 12, Limit: 100}},
		{"objects-listed", wire.KindResponse, OpObjects, 0, &ObjectsListed{Objects: []ObjectInfo{held, {ID: "b2", Endpoint: "load"}}, Next: 13}},
		{"destroy-object", wire.KindRequest, OpObjectDestroy, 0, &Object{ID: "a1"}},
		{"object-gone-reason", wire.KindEvent, OpObjectWatch, 0, &ObjectGone{ID: "a1", Reason: "destroyed by process 4244 (sharedtensor release)"}},
		{"returned-token", wire.KindResponse, OpCall, 0, &Returned{Value: value, Object: &ObjectRef{ID: "a1", Server: "8c1f", Token: 17}}},
		{"object-info-token", wire.KindResponse, OpObjectRefer, 0, &ObjectInfo{ID: "a1", Server: "8c1f", Endpoint: "load", Refs: 1, Mine: 1,
			CreatedAt: 1_700_000_000_000_000_000, AccessedAt: 1_700_000_000_000_000_004, Token: 18}},
		{"release-objects-tokens", wire.KindRequest, OpObjectRelease, 0, &ReleaseObjects{IDs: []string{"a1", "b2"}, Tokens: []uint64{17, 0}}},
		{"objects-released-tokens", wire.KindResponse, OpObjectRelease, 0, &ObjectsReleased{Objects: []ObjectReleased{
			{ID: "a1", Released: true, Refs: 1, Token: 17}, {ID: "b2", Released: true, Destroyed: true, Token: 9}}}},
		{"offer", wire.KindRequest, OpOffer, 0, &Offer{Endpoints: []EndpointInfo{{Name: "scale", Cache: true, SingleFlight: true, Timeout: 5_000_000_000,
			In: "x, factor", Out: "Tensor", InFields: []FieldInfo{{Name: "x", Type: "Tensor"}, {Name: "factor", Type: "float", Optional: true}}},
			{Name: "steps", Stream: true}}, Calls: 8}},
		{"offer-least", wire.KindRequest, OpOffer, 0, &Offer{Endpoints: []EndpointInfo{{Name: "scale"}}}},
		{"offering", wire.KindResponse, OpOffer, 0, &Offering{Calls: 8}},
		{"offer-event", wire.KindEvent, OpOffer, 1, &OfferEvent{Kind: OfferCall, Call: 3, Endpoint: "scale", Args: args, Handles: named,
			Timeout: 5 * time.Second}},
		{"offer-event-cancel", wire.KindEvent, OpOffer, 0, &OfferEvent{Kind: OfferCancel, Call: 3, Reason: "the caller left"}},
		{"answer", wire.KindRequest, OpAnswer, 1, &Answer{Call: 3, Value: value, Handles: handles}},
		{"answer-more", wire.KindRequest, OpAnswer, 0, &Answer{Call: 4, Value: value, More: true}},
		{"answer-error", wire.KindRequest, OpAnswer, 0, &Answer{Call: 3, Error: &Error{Code: CodeApplication, Message: "quota", Type: "quota"}}},
		{"answered", wire.KindResponse, OpAnswer, 0, &Answered{}},
		{"endpoints-listed-workers", wire.KindResponse, OpEndpoints, 0, &EndpointsListed{Endpoints: []EndpointInfo{worked}}},
		{"server-info-offers", wire.KindResponse, OpServerInfo, 0, &ServerInfo{Server: "8c1f",
			Endpoints: []EndpointStats{{Name: "scale", Workers: 2}}, Sessions: []SessionInfo{{Session: 5, Offers: 2}}}},
		{"server-info-durations", wire.KindResponse, OpServerInfo, 0, &ServerInfo{Server: "8c1f",
			Endpoints: []EndpointStats{{Name: "scale", Runs: 3, Total: 40_000_000, Durations: []uint64{0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}}}},
	}
}
