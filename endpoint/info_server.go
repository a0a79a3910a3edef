package endpoint

import (
	"math"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/server"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// EndpointInfo describes an endpoint.
type EndpointInfo struct {
	// Name is the name of the endpoint.
	Name string `json:"name"`
	// In and Out are the Go types of its argument and result, for people.
	In  string `json:"in"`
	Out string `json:"out"`
	// InFields and OutFields describe the fields if the types are or contain structs.
	InFields  []FieldInfo `json:"in_fields,omitempty"`
	OutFields []FieldInfo `json:"out_fields,omitempty"`
	// InTensor and OutTensor declare a tensor that is the whole argument or result. They are nil if it is none, or not
	// declared.
	InTensor  *TensorSpec `json:"in_tensor,omitempty"`
	OutTensor *TensorSpec `json:"out_tensor,omitempty"`
	// BatchMax is the maximum number of requests that callers may join into one call; 0 for none. BatchDelay is how long
	// a request may wait for others.
	BatchMax   int           `json:"batch_max,omitempty"`
	BatchDelay time.Duration `json:"batch_delay,omitempty"`
	// Task reports whether calls run as tasks.
	Task bool `json:"task"`
	// Managed reports whether results are managed objects.
	Managed bool `json:"managed"`
	// Stream reports whether it returns a stream of results.
	Stream bool `json:"stream"`
	// Cache reports whether results are cached.
	Cache bool `json:"cache"`
	// CacheKey is the template of the cache key; empty if the key is the whole argument.
	CacheKey string `json:"cache_key,omitempty"`
	// SingleFlight reports whether equal concurrent calls share one run.
	SingleFlight bool `json:"single_flight"`
	// Serialized reports whether runs wait for each other.
	Serialized bool `json:"serialized"`
	// Writable reports whether its function may write to the tensors of its arguments ([WritableArguments]). Memory
	// that is closed to new writers ([driver.Memory.Freeze]) cannot be passed to it.
	Writable bool `json:"writable,omitempty"`
	// Timeout limits a run; 0 means no limit.
	Timeout time.Duration `json:"timeout,omitempty"`
	// Uncached counts calls that were not cached because an argument was in memory that may still be written.
	Uncached uint64 `json:"uncached,omitempty"`
	// Workers lists the processes that run its function ([Client.Offer]); empty for an endpoint of the owner.
	Workers []EndpointWorker `json:"workers,omitempty"`
}

// EndpointWorker is a process that runs the function of an endpoint.
type EndpointWorker struct {
	Process
	// Session is the number of its connection.
	Session uint64 `json:"session"`
	// Running is the number of calls it runs, of all endpoints that it offers, and Most the maximum.
	Running uint64 `json:"running"`
	Most    uint64 `json:"most"`
	// Since is the time of its connection.
	Since time.Time `json:"since"`
}

// ServerInfo describes a server at one moment.
type ServerInfo struct {
	// Kind is "SharedTensorServer".
	Kind string `json:"server"`
	// ID is the id of the server. A restarted owner has a new one.
	ID string `json:"server_id"`
	// Version is the version of its program, and Label its name for people.
	Version string `json:"version,omitempty"`
	Label   string `json:"label,omitempty"`
	// Socket is the path of its socket; empty if there is none. DeviceIndex is the index in that path ([SocketPath]),
	// or -1.
	Socket      string `json:"socket_path,omitempty"`
	DeviceIndex int    `json:"device_index"`
	// PID and ParentPID are the ids of the process and its parent.
	PID       int32 `json:"pid"`
	ParentPID int32 `json:"ppid"`
	// StartedAt is the wall-clock time of its start. Uptime is measured with the monotonic clock.
	StartedAt time.Time     `json:"started_at"`
	Uptime    time.Duration `json:"uptime"`
	// Running reports whether it has a socket and is not shutting down, Ready whether it also accepts clients.
	Running bool `json:"running"`
	Ready   bool `json:"ready"`
	// Devices lists the devices whose memory it shares.
	Devices []DeviceInfo `json:"devices"`
	// Capabilities describes how it can share memory.
	Capabilities Capabilities `json:"capabilities"`
	// Stats holds its counters and current numbers.
	Stats ServerStats `json:"stats"`
	// Memory is its memory by device and purpose. The sum is Stats.BytesOwned.
	Memory []MemoryUse `json:"memory"`
	// Limits lists the limits on clients and their current use.
	Limits []LimitUse `json:"limits"`
	// Refusals counts what the access policy refused, by right.
	Refusals []Refusals `json:"refusals,omitempty"`
	// NotAdopted lists the kept versions that it cannot map, sorted by name and number.
	NotAdopted []NotAdopted `json:"not_adopted,omitempty"`
	// Placements lists the devices on which it makes placements.
	Placements []PlacementDevice `json:"placements,omitempty"`
	// Endpoints lists its endpoints with the numbers of calls and the durations of runs.
	Endpoints []EndpointStats `json:"endpoints"`
	// Sessions lists its sessions, oldest first. The first is its own process, which needs no connection; the others
	// are clients.
	Sessions []SessionInfo `json:"sessions"`
}

// Capabilities describes how a server can share memory.
type Capabilities struct {
	// Transport is "same-host-unix-handles": memory is shared in place, by handles that a Unix socket transfers.
	Transport string `json:"transport"`
	// Handles lists the kinds of handle that its devices support.
	Handles []HandleSupport `json:"handles"`
}

// HandleSupport reports whether memory of a device can be shared by one kind of handle.
type HandleSupport struct {
	// Device is the UUID of the device.
	Device string `json:"device"`
	// Kind is the kind of handle, such as "memfd" or "cuda-fd".
	Kind string `json:"kind"`
	// Supported reports whether it works, and Reason why not.
	Supported bool   `json:"supported"`
	Reason    string `json:"reason,omitempty"`
}

// MemoryUse is the memory of one device that a server uses for one purpose: its own, and what it has mapped of other
// processes. Each allocation counts once.
type MemoryUse struct {
	// Device is the UUID of the device and Type its kind, such as "cpu" or "cuda".
	Device string `json:"device"`
	Type   string `json:"type"`
	// Use is the purpose.
	Use MemoryUsage `json:"use"`
	// Bytes is its size and Storages the number of allocations.
	Bytes    uint64 `json:"bytes"`
	Storages uint64 `json:"storages"`
}

// DeviceInfo describes a device whose memory is shared.
type DeviceInfo struct {
	// UUID identifies the device on every host and in every process.
	UUID string `json:"uuid"`
	// Type is the kind of device, such as "cpu" or "cuda". Index is its index of that kind as seen by the server.
	Type  string `json:"type"`
	Index int    `json:"index"`
	// Name is the model of the device.
	Name string `json:"name,omitempty"`
}

// decodeDevices converts devices from their wire form.
func decodeDevices(in []message.DeviceInfo) []DeviceInfo {
	out := make([]DeviceInfo, 0, len(in))
	for _, d := range in {
		out = append(out, DeviceInfo{
			UUID: driver.UUID(d.UUID).String(), Type: driver.DeviceType(d.Type).String(), Index: int(d.Index), Name: d.Name,
		})
	}
	return out
}

// ServerStats holds a server's counters since its start, and current numbers.
type ServerStats struct {
	// Requests counts requests, and Errors requests answered with an error.
	Requests uint64 `json:"requests_processed"`
	Errors   uint64 `json:"errors_encountered"`
	// CacheHits counts cached calls with an available result, CacheMisses those that started a run, CacheJoins those
	// that waited for the run of another call, and CacheInvalidations invalidated results.
	CacheHits          uint64 `json:"cache_hits"`
	CacheMisses        uint64 `json:"cache_misses"`
	CacheJoins         uint64 `json:"cache_joins"`
	CacheInvalidations uint64 `json:"cache_invalidations"`
	// CacheEntries is the number of cached results and CacheBytes the size of their memory and encoding.
	CacheEntries uint64 `json:"cache_entries"`
	CacheBytes   uint64 `json:"cache_bytes"`
	// Inflight is the number of cached results being computed.
	Inflight uint64 `json:"inflight_calls"`
	// Objects is the number of managed objects.
	Objects uint64 `json:"objects"`
	// TaskSubmissions counts submitted tasks. Tasks is the number of tasks the server keeps, and TasksRunning that of
	// running ones.
	TaskSubmissions uint64 `json:"task_submissions"`
	Tasks           uint64 `json:"task_count"`
	TasksRunning    uint64 `json:"tasks_running"`
	// Models, Versions and Leases are the numbers of published names, versions and leases. Watchers is the number of
	// watches.
	Models   uint64 `json:"models"`
	Versions uint64 `json:"versions"`
	Leases   uint64 `json:"leases"`
	Watchers uint64 `json:"watchers"`
	// BytesOwned is the memory of versions, managed objects, cached results and results of tasks; each allocation
	// counts once. BytesMapped is the part for which clients have leases and references, counted per client. What
	// clients keep mapped beyond that is unknown.
	BytesOwned  uint64 `json:"bytes_owned"`
	BytesMapped uint64 `json:"bytes_mapped"`
	// Clients is the number of connected clients.
	Clients uint64 `json:"clients"`
	// CachedObjects is the number of managed objects in the cache.
	CachedObjects uint64 `json:"cached_objects"`
	// CacheFailures counts failed runs of cached endpoints, CacheEvictions results evicted for lack of room, and
	// CacheExpirations results that were too old.
	CacheFailures    uint64 `json:"cache_failures"`
	CacheEvictions   uint64 `json:"cache_evictions"`
	CacheExpirations uint64 `json:"cache_expirations"`
	// TasksPending is the number of tasks that wait for a worker.
	TasksPending uint64 `json:"tasks_pending"`
	// TasksCompleted, TasksFailed and TasksCancelled count tasks by outcome, and TasksExpired finished tasks that were
	// dropped because of their age.
	TasksCompleted uint64 `json:"tasks_completed"`
	TasksFailed    uint64 `json:"tasks_failed"`
	TasksCancelled uint64 `json:"tasks_cancelled"`
	TasksExpired   uint64 `json:"tasks_expired"`
	// SlabsReused counts results in reused memory ([ResultDevice]), SlabsFresh results in new memory that can be
	// reused, and SlabsRefused results that the limits kept out of reusable memory.
	SlabsReused  uint64 `json:"slabs_reused"`
	SlabsFresh   uint64 `json:"slabs_fresh"`
	SlabsRefused uint64 `json:"slabs_refused"`
	// PoolSlabs is the number of allocations that the process's pools keep for later publications ([driver.Pools]), and
	// PoolBytes their size. PoolReused counts reused allocations, PoolFresh new ones, and PoolBusy those new ones for
	// which the pool had only memory that was still in use.
	PoolSlabs  uint64 `json:"pool_slabs"`
	PoolBytes  uint64 `json:"pool_bytes"`
	PoolReused uint64 `json:"pool_reused"`
	PoolFresh  uint64 `json:"pool_fresh"`
	PoolBusy   uint64 `json:"pool_busy"`
}

// EndpointStats holds the numbers of calls and the durations of runs of one endpoint.
type EndpointStats struct {
	// Name is the name of the endpoint.
	Name string `json:"name"`
	// Calls counts calls, including submitted tasks and streams. CacheHits counts those whose result was cached or made
	// by another call's run, Uncached those that were not cached because an argument was in memory that may still be
	// written, and Failures those that ended with an error.
	Calls     uint64 `json:"calls"`
	CacheHits uint64 `json:"cache_hits"`
	Uncached  uint64 `json:"uncached"`
	Failures  uint64 `json:"failures"`
	// Runs counts runs of its function, and Errors failed runs.
	Runs   uint64 `json:"runs"`
	Errors uint64 `json:"run_errors"`
	// P50, P90 and P99 are percentiles of the durations of runs, accurate to one eighth. Total is the sum of all
	// durations.
	P50   time.Duration `json:"p50"`
	P90   time.Duration `json:"p90"`
	P99   time.Duration `json:"p99"`
	Total time.Duration `json:"total"`
	// Durations[i] is the number of runs that took less than [DurationBound](i) and not less than DurationBound(i-1). The
	// bounds are the same everywhere, so that the numbers of several owners can be added. Zeros at the end are left out.
	Durations []uint64 `json:"durations"`
	// Workers is the number of processes that run the function ([Client.Offer]); 0 for an endpoint of the server.
	Workers uint64 `json:"workers"`
}

// DurationBound returns the upper bound of element i of [EndpointStats.Durations]: 8.192 µs, and twice the bound before for each
// further one, up to 68.7 s for element 23. The last element, with index 24, has no bound; DurationBound returns the longest
// duration for it.
func DurationBound(i int) time.Duration {
	if i >= message.DurationCounts-1 {
		return math.MaxInt64
	}
	return 8192 << max(i, 0)
}

// SessionInfo describes a session of a server and what it holds.
type SessionInfo struct {
	Process
	// Session is the number of the connection, unique until the server restarts.
	Session uint64 `json:"session"`
	// Self reports whether it is the server's own process.
	Self bool `json:"self"`
	// Since is the time of its connection.
	Since time.Time `json:"since"`
	// Leases is the number of its leases, Objects that of its references to managed objects, and Bytes the memory of
	// both; each allocation counts once.
	Leases  uint64 `json:"leases"`
	Objects uint64 `json:"objects"`
	Bytes   uint64 `json:"bytes"`
	// References lists its managed objects, largest first: at most 16, and fewer if there are hundreds of sessions.
	References []Reference `json:"references"`
	// Requests is the number of its requests in flight that wait or compute.
	Requests uint64 `json:"requests"`
	// Offers is the number of endpoints that it offers ([Client.Offer]).
	Offers uint64 `json:"offers"`
}

// Reference describes a session's references to one managed object.
type Reference struct {
	// ID is the id of the object.
	ID string `json:"id"`
	// Endpoint is the name of the endpoint that created it.
	Endpoint string `json:"endpoint"`
	// Refs is the number of the session's references to it.
	Refs uint64 `json:"refs"`
	// Bytes is the size of its memory and encoding.
	Bytes uint64 `json:"bytes"`
}

func decodeEndpoint(in message.EndpointInfo) EndpointInfo {
	var workers []EndpointWorker
	for _, w := range in.Workers {
		workers = append(workers, EndpointWorker{
			Process: Process{PID: w.PID, UID: w.UID, Label: status.ShortLabel(w.Label)}, Session: w.Session, Running: w.Running, Most: w.Most, Since: fromNanos(w.Since),
		})
	}
	return EndpointInfo{
		Workers: workers,
		Name:    in.Name, In: in.In, Out: in.Out, Task: in.Task, Managed: in.Managed, Stream: in.Stream, Cache: in.Cache, CacheKey: in.CacheKey,
		SingleFlight: in.SingleFlight, Serialized: in.Serialized, Writable: in.Writable, Timeout: time.Duration(in.Timeout), Uncached: in.Uncached,
		InFields: decodeFields(in.InFields), OutFields: decodeFields(in.OutFields), InTensor: decodeTensor(in.InTensor), OutTensor: decodeTensor(in.OutTensor),
		BatchMax: int(min(in.BatchMax, math.MaxInt32)), BatchDelay: time.Duration(in.BatchDelay),
	}
}

func decodeServerInfo(in message.ServerInfo) ServerInfo {
	out := ServerInfo{
		Kind: in.Kind, ID: in.Server, Version: in.Version, Label: in.Label, Socket: in.Socket, DeviceIndex: int(in.DeviceIndex),
		PID: in.PID, ParentPID: in.ParentPID, StartedAt: fromNanos(in.StartedAt), Uptime: time.Duration(in.Uptime),
		Running: in.Running, Ready: in.Ready, Stats: ServerStats(in.Stats), Devices: decodeDevices(in.Devices), Memory: []MemoryUse{},
		Capabilities: Capabilities{Transport: in.Capabilities.Transport, Handles: []HandleSupport{}},
		Endpoints:    []EndpointStats{}, Sessions: []SessionInfo{}, Limits: []LimitUse{},
	}
	for _, l := range in.Limits {
		out.Limits = append(out.Limits, LimitUse(l))
	}
	for _, r := range in.Refusals {
		out.Refusals = append(out.Refusals, Refusals(r))
	}
	for _, v := range in.NotAdopted {
		out.NotAdopted = append(out.NotAdopted, decodeNotAdopted(v))
	}
	out.Placements = decodePlacementDevices(in.Placements)
	for _, h := range in.Capabilities.Handles {
		out.Capabilities.Handles = append(out.Capabilities.Handles, HandleSupport{
			Device: driver.UUID(h.Device).String(), Kind: h.Kind, Supported: h.Supported, Reason: h.Reason,
		})
	}
	for _, m := range in.Memory {
		out.Memory = append(out.Memory, MemoryUse{
			Device: driver.UUID(m.Device).String(), Type: driver.DeviceType(m.Type).String(), Use: MemoryUsage(m.Use), Bytes: m.Bytes,
			Storages: m.Storages,
		})
	}
	for _, e := range in.Endpoints {
		out.Endpoints = append(out.Endpoints, EndpointStats{
			Name: e.Name, Calls: e.Calls, CacheHits: e.CacheHits, Uncached: e.Uncached, Failures: e.Failures, Runs: e.Runs, Errors: e.Errors,
			P50: time.Duration(e.P50), P90: time.Duration(e.P90), P99: time.Duration(e.P99), Total: time.Duration(e.Total), Workers: e.Workers,
			Durations: e.Durations[:min(len(e.Durations), message.DurationCounts)],
		})
	}
	for _, s := range in.Sessions {
		session := SessionInfo{
			Process: Process{PID: s.PID, UID: s.UID, Label: s.Label}, Session: s.Session, Self: s.Self, Since: fromNanos(s.Since),
			Leases: s.Leases, Bytes: s.Bytes, Objects: s.Objects, Requests: s.Requests, References: []Reference{}, Offers: s.Offers,
		}
		for _, r := range s.References {
			session.References = append(session.References, Reference(r))
		}
		out.Sessions = append(out.Sessions, session)
	}
	return out
}

// FieldInfo describes a field of a struct in an argument or result.
type FieldInfo struct {
	// Name is the name on the wire.
	Name string `json:"name"`
	// Type is its Go type, for people.
	Type string `json:"type"`
	// Optional reports whether the field may be omitted: its type is a pointer, or its tag has omitempty or omitzero.
	// Arguments without a required field are refused.
	Optional bool `json:"optional,omitempty"`
	// Fields describes the fields of a nested struct, to a limited depth.
	Fields []FieldInfo `json:"fields,omitempty"`
	// Tensor is the declared type of a tensor, from the tag of the field, such as `tensor:"float32[-1,3]"`. nil means that
	// nothing is declared.
	Tensor *TensorSpec `json:"tensor,omitempty"`
}

// TensorSpec is the declared type of a tensor in an argument or a result.
type TensorSpec = codec.TensorSpec

// decodeTensor converts a declaration from its wire form. It ignores one that this version does not understand.
func decodeTensor(text string) *TensorSpec {
	s, err := codec.ParseTensorSpec(text)
	if err != nil {
		return nil
	}
	return &s
}

// decodeFields converts fields from their wire form.
func decodeFields(in []message.FieldInfo) []FieldInfo {
	if len(in) == 0 {
		return nil
	}
	list := make([]FieldInfo, len(in))
	for i, f := range in {
		list[i] = FieldInfo{Name: f.Name, Type: f.Type, Optional: f.Optional, Fields: decodeFields(f.Fields), Tensor: decodeTensor(f.Tensor)}
	}
	return list
}

// MemoryUsage is a purpose for which a server uses memory.
type MemoryUsage string

// The purposes of memory. Memory that serves several purposes counts for the first of them in this order.
const (
	// MemoryModels is the memory of published versions.
	MemoryModels MemoryUsage = server.MemoryModels
	// MemoryObjects is the memory of managed objects.
	MemoryObjects MemoryUsage = server.MemoryObjects
	// MemoryResults is the memory of cached results.
	MemoryResults MemoryUsage = server.MemoryResults
	// MemoryTasks is the memory of results that tasks keep.
	MemoryTasks MemoryUsage = server.MemoryTasks
)

// LimitUse describes a limit on clients and its current use. PROTOCOL.md has the table.
type LimitUse struct {
	// Name is the name of the limit with its unit, such as "request_bytes".
	Name string `json:"name"`
	// Client is the limit for one client and All that for all clients together; 0 means no limit.
	Client int64 `json:"client,omitempty"`
	All    int64 `json:"all,omitempty"`
	// Most is the highest use by one client, and Used the use by all clients together.
	Most int64 `json:"most"`
	Used int64 `json:"used"`
	// Refused counts requests, items or clients that were refused, dropped or disconnected because of the limit.
	Refused uint64 `json:"refused"`
	// Reason is the origin of the limit if it is not the table's default.
	Reason string `json:"reason,omitempty"`
}

// Refusals counts requests and clients that the access policy refused because they lacked a right.
type Refusals struct {
	// Right is the name of the right, such as "publish" or "connect". Package access lists them.
	Right string `json:"right"`
	// Count is the number of refusals since the start.
	Count uint64 `json:"count"`
}
