package endpoint

import (
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// EndpointInfo describes an endpoint.
type EndpointInfo struct {
	// Name is its name.
	Name string `json:"name"`
	// In and Out are the types of its argument and its result, for people.
	In  string `json:"in"`
	Out string `json:"out"`
	// InFields and OutFields are the fields of the structs that they are or hold; none where they are no structs.
	InFields  []FieldInfo `json:"in_fields,omitempty"`
	OutFields []FieldInfo `json:"out_fields,omitempty"`
	// Task reports whether calls of it run as tasks.
	Task bool `json:"task"`
	// Managed reports whether its results are managed objects.
	Managed bool `json:"managed"`
	// Stream reports whether its results come one by one.
	Stream bool `json:"stream"`
	// Cache reports whether its results are cached.
	Cache bool `json:"cache"`
	// CacheKey is the template of the cache key; empty for a key of all arguments.
	CacheKey string `json:"cache_key,omitempty"`
	// SingleFlight reports whether equal calls at the same time share one run.
	SingleFlight bool `json:"single_flight"`
	// Serialized reports whether runs wait for each other.
	Serialized bool `json:"serialized"`
	// Writable reports whether its function may write to the tensors of its arguments ([WritableArguments]): memory that
	// is closed against new writers ([driver.Freezer]) cannot be given to it.
	Writable bool `json:"writable,omitempty"`
	// Timeout bounds a run; 0 for no bound.
	Timeout time.Duration `json:"timeout,omitempty"`
	// Uncached counts calls that would have been cached, had not an argument been in memory that may still be written.
	Uncached uint64 `json:"uncached,omitempty"`
	// Workers are the processes that run its function ([Client.Offer]); none for an endpoint of the owner's own.
	Workers []EndpointWorker `json:"workers,omitempty"`
}

// EndpointWorker is a process that runs the function of an endpoint.
type EndpointWorker struct {
	Process
	// Session is its connection.
	Session uint64 `json:"session"`
	// Running is how many calls it has, of all endpoints that it offered together, and Most how many it takes at once.
	Running uint64 `json:"running"`
	Most    uint64 `json:"most"`
	// Since is when it connected.
	Since time.Time `json:"since"`
}

// ServerInfo describes a server at one moment.
type ServerInfo struct {
	// Kind is [ServerKind].
	Kind string `json:"server"`
	// ID names the server; a restarted owner has another one.
	ID string `json:"server_id"`
	// Version is the version of its program, Label its name for people.
	Version string `json:"version,omitempty"`
	Label   string `json:"label,omitempty"`
	// Socket is the path on which it serves; empty without a socket. DeviceIndex is the number in it ([SocketPath]), -1
	// where it has none.
	Socket      string `json:"socket_path,omitempty"`
	DeviceIndex int    `json:"device_index"`
	// PID and ParentPID are the process.
	PID       int32 `json:"pid"`
	ParentPID int32 `json:"ppid"`
	// StartedAt is when it began, by the clock; Uptime is how long ago that is, whatever was done to the clock.
	StartedAt time.Time     `json:"started_at"`
	Uptime    time.Duration `json:"uptime"`
	// Running reports whether it has a socket and is not shutting down, Ready that it accepts clients too.
	Running bool `json:"running"`
	Ready   bool `json:"ready"`
	// Devices are those that it shares memory of.
	Devices []DeviceInfo `json:"devices"`
	// Capabilities are what it can share, and how.
	Capabilities Capabilities `json:"capabilities"`
	// Stats are its counters, and numbers of this moment.
	Stats ServerStats `json:"stats"`
	// Memory is what it has of each device for each purpose. The sum is Stats.BytesOwned.
	Memory []MemoryUse `json:"memory"`
	// Limits are the bounds on what clients can make it hold and do, and what is in use of them.
	Limits []LimitUse `json:"limits"`
	// Endpoints are its endpoints with how they were called and what their runs took.
	Endpoints []EndpointStats `json:"endpoints"`
	// Sessions are its users, the oldest first: the first is its own process, which needs no connection, the others
	// are clients.
	Sessions []SessionInfo `json:"sessions"`
}

// Capabilities are what a server can share, and how.
type Capabilities struct {
	// Transport is [Transport].
	Transport string `json:"transport"`
	// Handles are the kinds of handle that its devices know.
	Handles []HandleSupport `json:"handles"`
}

// HandleSupport reports whether memory of a device can be shared by one kind of handle.
type HandleSupport struct {
	// Device is the UUID of the device.
	Device string `json:"device"`
	// Kind is the kind of handle, such as "memfd" or "cuda-fd".
	Kind string `json:"kind"`
	// Supported reports whether it works; Reason is why not.
	Supported bool   `json:"supported"`
	Reason    string `json:"reason,omitempty"`
}

// MemoryUse is the memory of one device that a server has for one purpose: its own, and what it has mapped of others.
// Each piece is counted once.
type MemoryUse struct {
	// Device is the UUID of the device, Type its kind, such as "cpu" or "cuda".
	Device string `json:"device"`
	Type   string `json:"type"`
	// Use is what it is for.
	Use MemoryUsage `json:"use"`
	// Bytes is its size, Storages in how many pieces it is.
	Bytes    uint64 `json:"bytes"`
	Storages uint64 `json:"storages"`
}

// DeviceInfo describes a device that memory is shared of.
type DeviceInfo struct {
	// UUID names it on every host and in every process.
	UUID string `json:"uuid"`
	// Type is the kind of device, such as "cpu" or "cuda"; Index counts within it in the server's view.
	Type  string `json:"type"`
	Index int    `json:"index"`
	// Name is the model.
	Name string `json:"name,omitempty"`
}

// decodeDevices is what a client makes of devices.
func decodeDevices(in []message.DeviceInfo) []DeviceInfo {
	out := make([]DeviceInfo, 0, len(in))
	for _, d := range in {
		out = append(out, DeviceInfo{
			UUID: driver.UUID(d.UUID).String(), Type: driver.DeviceType(d.Type).String(), Index: int(d.Index), Name: d.Name,
		})
	}
	return out
}

// ServerStats are a server's counters since its start, and numbers of this moment.
type ServerStats struct {
	// Requests counts requests, Errors those that were answered with an error.
	Requests uint64 `json:"requests_processed"`
	Errors   uint64 `json:"errors_encountered"`
	// CacheHits counts cached calls whose result was there, CacheMisses those that began a run, CacheJoins those that
	// waited for a run of another, CacheInvalidations the results that were invalidated.
	CacheHits          uint64 `json:"cache_hits"`
	CacheMisses        uint64 `json:"cache_misses"`
	CacheJoins         uint64 `json:"cache_joins"`
	CacheInvalidations uint64 `json:"cache_invalidations"`
	// CacheEntries is how many results are cached, CacheBytes the size of their memory and encoding.
	CacheEntries uint64 `json:"cache_entries"`
	CacheBytes   uint64 `json:"cache_bytes"`
	// Inflight is how many cached results are being made.
	Inflight uint64 `json:"inflight_calls"`
	// Objects is how many managed objects there are.
	Objects uint64 `json:"objects"`
	// TaskSubmissions counts tasks, Tasks is how many are known and TasksRunning how many run.
	TaskSubmissions uint64 `json:"task_submissions"`
	Tasks           uint64 `json:"task_count"`
	TasksRunning    uint64 `json:"tasks_running"`
	// Models, Versions and Leases are what is published and held, Watchers how many are told of changes.
	Models   uint64 `json:"models"`
	Versions uint64 `json:"versions"`
	Leases   uint64 `json:"leases"`
	Watchers uint64 `json:"watchers"`
	// BytesOwned is the memory of versions, managed objects, cached results and results of tasks, each piece counted
	// once. BytesMapped is what clients have of it by leases and references, each client for itself. What clients keep
	// mapped after that is not known.
	BytesOwned  uint64 `json:"bytes_owned"`
	BytesMapped uint64 `json:"bytes_mapped"`
	// Clients is how many are connected.
	Clients uint64 `json:"clients"`
	// CachedObjects is how many of the managed objects are found in the cache.
	CachedObjects uint64 `json:"cached_objects"`
	// CacheFailures counts runs for the cache that failed, CacheEvictions results for which there was no room,
	// CacheExpirations those that were too old.
	CacheFailures    uint64 `json:"cache_failures"`
	CacheEvictions   uint64 `json:"cache_evictions"`
	CacheExpirations uint64 `json:"cache_expirations"`
	// TasksPending is how many tasks wait for a worker.
	TasksPending uint64 `json:"tasks_pending"`
	// TasksCompleted, TasksFailed and TasksCancelled count the ends of tasks, TasksExpired those that were too old to
	// be kept after it.
	TasksCompleted uint64 `json:"tasks_completed"`
	TasksFailed    uint64 `json:"tasks_failed"`
	TasksCancelled uint64 `json:"tasks_cancelled"`
	TasksExpired   uint64 `json:"tasks_expired"`
	// SlabsReused counts results in memory that was used before ([ResultDevice]), SlabsFresh those in new memory that
	// may be used again, SlabsRefused those for which the limits left no room.
	SlabsReused  uint64 `json:"slabs_reused"`
	SlabsFresh   uint64 `json:"slabs_fresh"`
	SlabsRefused uint64 `json:"slabs_refused"`
	// PoolSlabs is how many pieces of memory the pools of the server's process keep for publications to come
	// ([driver.Pools]), PoolBytes their size. PoolReused counts allocations in memory that was used before, PoolFresh
	// those in new memory, and PoolBusy those of the fresh for which there was memory that somebody still had.
	PoolSlabs  uint64 `json:"pool_slabs"`
	PoolBytes  uint64 `json:"pool_bytes"`
	PoolReused uint64 `json:"pool_reused"`
	PoolFresh  uint64 `json:"pool_fresh"`
	PoolBusy   uint64 `json:"pool_busy"`
}

// EndpointStats is an endpoint, how it was called and what its runs took.
type EndpointStats struct {
	// Name is the endpoint.
	Name string `json:"name"`
	// Calls counts calls of it, submitted tasks and streams included; CacheHits those with a result that was there or
	// that the run of another call made; Uncached those that were not cached because an argument was in memory that may
	// still be written; Failures those that ended with an error.
	Calls     uint64 `json:"calls"`
	CacheHits uint64 `json:"cache_hits"`
	Uncached  uint64 `json:"uncached"`
	Failures  uint64 `json:"failures"`
	// Runs counts runs of its function, Errors those that failed.
	Runs   uint64 `json:"runs"`
	Errors uint64 `json:"run_errors"`
	// P50, P90 and P99 are the times within which half, nine tenths and 99 hundredths of the runs were, within an
	// eighth; Total is what all took together.
	P50   time.Duration `json:"p50"`
	P90   time.Duration `json:"p90"`
	P99   time.Duration `json:"p99"`
	Total time.Duration `json:"total"`
	// Workers is how many processes run the function ([Client.Offer]); 0 for an endpoint of the server's own.
	Workers uint64 `json:"workers"`
}

// SessionInfo is one user of a server, and what it holds.
type SessionInfo struct {
	Process
	// Session numbers the connection within the server's life.
	Session uint64 `json:"session"`
	// Self reports whether it is the server's own process.
	Self bool `json:"self"`
	// Since is when it connected.
	Since time.Time `json:"since"`
	// Leases is how many versions it holds, Objects how many references to managed objects, Bytes the memory of both,
	// each piece counted once.
	Leases  uint64 `json:"leases"`
	Objects uint64 `json:"objects"`
	Bytes   uint64 `json:"bytes"`
	// References are the objects that it refers to, the largest first: at most 16 of them, and fewer where there are
	// hundreds of sessions.
	References []Reference `json:"references"`
	// Requests is how many requests it has in flight that wait or compute.
	Requests uint64 `json:"requests"`
	// Offers is how many endpoints it offers ([Client.Offer]).
	Offers uint64 `json:"offers"`
}

// Reference is a session's hold on a managed object.
type Reference struct {
	// ID is the object.
	ID string `json:"id"`
	// Endpoint is what made it.
	Endpoint string `json:"endpoint"`
	// Refs is how many references the session has to it.
	Refs uint64 `json:"refs"`
	// Bytes is the size of its memory and encoding.
	Bytes uint64 `json:"bytes"`
}

func decodeEndpoint(in message.EndpointInfo) EndpointInfo {
	var workers []EndpointWorker
	for _, w := range in.Workers {
		workers = append(workers, EndpointWorker{
			Process: Process{PID: w.PID, UID: w.UID, Label: limits.ShortLabel(w.Label)}, Session: w.Session, Running: w.Running, Most: w.Most, Since: fromNanos(w.Since),
		})
	}
	return EndpointInfo{
		Workers: workers,
		Name:    in.Name, In: in.In, Out: in.Out, Task: in.Task, Managed: in.Managed, Stream: in.Stream, Cache: in.Cache, CacheKey: in.CacheKey,
		SingleFlight: in.SingleFlight, Serialized: in.Serialized, Writable: in.Writable, Timeout: time.Duration(in.Timeout), Uncached: in.Uncached,
		InFields: decodeFields(in.InFields), OutFields: decodeFields(in.OutFields),
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

// FieldInfo describes a field of a struct that is an argument or a result, or stands in one.
type FieldInfo struct {
	// Name is the name on the wire.
	Name string `json:"name"`
	// Type is its Go type, for people.
	Type string `json:"type"`
	// Optional reports whether it may be left out: the type is a pointer, or the tag says omitempty or omitzero. An
	// argument in which another field is left out is refused.
	Optional bool `json:"optional,omitempty"`
	// Fields are those of the struct that the field is or holds, down to a certain depth.
	Fields []FieldInfo `json:"fields,omitempty"`
}

// decodeFields is what a caller makes of fields that crossed.
func decodeFields(in []message.FieldInfo) []FieldInfo {
	if len(in) == 0 {
		return nil
	}
	list := make([]FieldInfo, len(in))
	for i, f := range in {
		list[i] = FieldInfo{Name: f.Name, Type: f.Type, Optional: f.Optional, Fields: decodeFields(f.Fields)}
	}
	return list
}

// MemoryUsage says what a server has memory for.
type MemoryUsage string

// What a server has memory for. What serves two purposes is counted for the first of them, in this order.
const (
	// MemoryModels is the memory of published versions.
	MemoryModels MemoryUsage = "models"
	// MemoryObjects is the memory of managed objects.
	MemoryObjects MemoryUsage = "objects"
	// MemoryResults is the memory of cached results.
	MemoryResults MemoryUsage = "results"
	// MemoryTasks is the memory of results that tasks keep.
	MemoryTasks MemoryUsage = "tasks"
)

// LimitUse is one limit on what clients can make a server hold or do, with what is in use of it. PROTOCOL.md has the
// table.
type LimitUse struct {
	// Name names the limit, such as "request_bytes". The unit is part of it.
	Name string `json:"name"`
	// Client bounds one client, All all clients together; 0 where there is no such bound.
	Client int64 `json:"client,omitempty"`
	All    int64 `json:"all,omitempty"`
	// Most is the most that one client has, Used what all have together.
	Most int64 `json:"most"`
	Used int64 `json:"used"`
	// Refused counts what was refused, dropped or cut off because of it.
	Refused uint64 `json:"refused"`
	// Reason is where the bound comes from, where that is not the table.
	Reason string `json:"reason,omitempty"`
}
