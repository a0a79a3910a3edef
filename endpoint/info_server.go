package endpoint

import (
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/wire"
)

// EndpointInfo describes an endpoint.
type EndpointInfo struct {
	// Name is its name.
	Name string `json:"name"`
	// In and Out are the types of its argument and its result, for people.
	In  string `json:"in"`
	Out string `json:"out"`
	// Task tells that calls of it run as tasks.
	Task bool `json:"task"`
	// Managed tells that its results are managed objects.
	Managed bool `json:"managed"`
	// Stream tells that its results come one by one.
	Stream bool `json:"stream"`
	// Cache tells that its results are cached.
	Cache bool `json:"cache"`
	// CacheKey is the template of the cache key; empty for a key of all arguments.
	CacheKey string `json:"cache_key,omitempty"`
	// SingleFlight tells that equal calls at the same time share one run.
	SingleFlight bool `json:"single_flight"`
	// Serialized tells that runs wait for each other.
	Serialized bool `json:"serialized"`
	// Timeout bounds a run; 0 for no bound.
	Timeout time.Duration `json:"timeout,omitempty"`
}

// ServerInfo describes a server at one moment.
type ServerInfo struct {
	// ID names the server; a restarted owner has another one.
	ID string `json:"id"`
	// Version is the version of its program, Label its name for people.
	Version string `json:"version,omitempty"`
	Label   string `json:"label,omitempty"`
	// Socket is the path on which it serves; empty without a socket.
	Socket string `json:"socket,omitempty"`
	// PID and ParentPID are the process.
	PID       int32 `json:"pid"`
	ParentPID int32 `json:"parent_pid"`
	// StartedAt is when it began.
	StartedAt time.Time `json:"started_at"`
	// Ready tells that it serves: it accepts clients and is not shutting down.
	Ready bool `json:"ready"`
	// Devices are those that it shares memory of.
	Devices []DeviceInfo `json:"devices"`
	// Stats are its counters, and numbers of this moment.
	Stats ServerStats `json:"stats"`
	// Endpoints are its endpoints with what their runs took.
	Endpoints []EndpointStats `json:"endpoints"`
	// Sessions are its clients, the oldest first.
	Sessions []SessionInfo `json:"sessions"`
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

// ServerStats are a server's counters since its start, and numbers of this moment.
type ServerStats struct {
	// Requests counts requests, Errors those that were answered with an error.
	Requests uint64 `json:"requests"`
	Errors   uint64 `json:"errors"`
	// CacheHits counts cached calls whose result was there, CacheMisses those that began a run, CacheJoins those that waited for a
	// run of another, CacheInvalidations the results that were invalidated.
	CacheHits          uint64 `json:"cache_hits"`
	CacheMisses        uint64 `json:"cache_misses"`
	CacheJoins         uint64 `json:"cache_joins"`
	CacheInvalidations uint64 `json:"cache_invalidations"`
	// CacheEntries is how many results are cached, CacheBytes their memory.
	CacheEntries uint64 `json:"cache_entries"`
	CacheBytes   uint64 `json:"cache_bytes"`
	// Inflight is how many cached results are being made.
	Inflight uint64 `json:"inflight"`
	// Objects is how many managed objects there are.
	Objects uint64 `json:"objects"`
	// TaskSubmissions counts tasks, Tasks is how many are known and TasksRunning how many run.
	TaskSubmissions uint64 `json:"task_submissions"`
	Tasks           uint64 `json:"tasks"`
	TasksRunning    uint64 `json:"tasks_running"`
	// Models, Versions and Leases are what is published and held, Watchers how many are told of changes.
	Models   uint64 `json:"models"`
	Versions uint64 `json:"versions"`
	Leases   uint64 `json:"leases"`
	Watchers uint64 `json:"watchers"`
	// BytesOwned is the memory of all versions that are not freed, BytesMapped what clients hold of it, each for itself.
	BytesOwned  uint64 `json:"bytes_owned"`
	BytesMapped uint64 `json:"bytes_mapped"`
	// Clients is how many sessions there are.
	Clients uint64 `json:"clients"`
}

// EndpointStats is an endpoint and what its runs took.
type EndpointStats struct {
	// Name is the endpoint.
	Name string `json:"name"`
	// Runs counts runs of its function, Errors those that failed. A cached result is no run.
	Runs   uint64 `json:"runs"`
	Errors uint64 `json:"errors"`
	// P50, P90 and P99 are the times within which half, nine tenths and 99 hundredths of the runs were, within an eighth.
	P50 time.Duration `json:"p50"`
	P90 time.Duration `json:"p90"`
	P99 time.Duration `json:"p99"`
}

// SessionInfo is a client and what it holds.
type SessionInfo struct {
	Process
	// Session numbers the connection within the server's life.
	Session uint64 `json:"session"`
	// Since is when it connected.
	Since time.Time `json:"since"`
	// Leases is how many versions it holds, Bytes their memory.
	Leases uint64 `json:"leases"`
	Bytes  uint64 `json:"bytes"`
	// Objects is how many references to managed objects it has.
	Objects uint64 `json:"objects"`
	// Requests is how many requests it has in flight that wait or compute.
	Requests uint64 `json:"requests"`
}

func decodeEndpoint(in wire.EndpointInfo) EndpointInfo {
	return EndpointInfo{
		Name: in.Name, In: in.In, Out: in.Out, Task: in.Task, Managed: in.Managed, Stream: in.Stream, Cache: in.Cache, CacheKey: in.CacheKey,
		SingleFlight: in.SingleFlight, Serialized: in.Serialized, Timeout: time.Duration(in.Timeout),
	}
}

func decodeServerInfo(in wire.ServerInfo) ServerInfo {
	out := ServerInfo{
		ID: in.Server, Version: in.Version, Label: in.Label, Socket: in.Socket, PID: in.PID, ParentPID: in.ParentPID,
		StartedAt: fromNanos(in.StartedAt), Ready: in.Ready, Stats: ServerStats(in.Stats),
		Devices: []DeviceInfo{}, Endpoints: []EndpointStats{}, Sessions: []SessionInfo{},
	}
	for _, d := range in.Devices {
		out.Devices = append(out.Devices, DeviceInfo{
			UUID: driver.UUID(d.UUID).String(), Type: driver.DeviceType(d.Type).String(), Index: int(d.Index), Name: d.Name,
		})
	}
	for _, e := range in.Endpoints {
		out.Endpoints = append(out.Endpoints, EndpointStats{
			Name: e.Name, Runs: e.Runs, Errors: e.Errors,
			P50: time.Duration(e.P50), P90: time.Duration(e.P90), P99: time.Duration(e.P99),
		})
	}
	for _, s := range in.Sessions {
		out.Sessions = append(out.Sessions, SessionInfo{
			Process: Process{PID: s.PID, UID: s.UID, Label: s.Label}, Session: s.Session, Since: fromNanos(s.Since),
			Leases: s.Leases, Bytes: s.Bytes, Objects: s.Objects, Requests: s.Requests,
		})
	}
	return out
}
