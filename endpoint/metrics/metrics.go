// Package metrics writes the status of servers and clients as Prometheus text and as expvar variables.
//
//	info, err := client.ServerInfo(ctx)
//	err = metrics.Write(w, info)
package metrics

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
)

// ContentType is the media type of the output of [Write] and [WriteClient].
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Write writes a server's description in the Prometheus text format (version 0.0.4). Names begin with
// "sharedtensor_". Sizes are in bytes, times in seconds. Counters end in "_total" and restart at 0 with a new server.
// The durations of endpoints' runs are summaries over the server's life. Sessions and references have no metrics,
// because their number over time is unbounded. It returns only errors of w.
func Write(w io.Writer, info endpoint.ServerInfo) error {
	var m writer
	m.about(info)
	m.counts(info.Stats, len(info.NotAdopted))
	m.cache(info.Stats)
	m.tasks(info.Stats)
	m.memory(info)
	m.reuse(info.Stats)
	m.placements(info.Placements)
	m.limits(info.Limits)
	m.refusals(info.Refusals)
	m.endpoints(info.Endpoints)
	_, err := w.Write(m.text.Bytes())
	return err
}

// Vars returns a function for expvar.Func that returns the server's description:
//
//	expvar.Publish("sharedtensor", expvar.Func(metrics.Vars(server, time.Second)))
//
// On an error, for example if the server does not answer within limit, it returns the error's text.
func Vars(c endpoint.Caller, limit time.Duration) func() any {
	return func() any {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		info, err := c.ServerInfo(ctx)
		if err != nil {
			return map[string]string{"error": err.Error()}
		}
		return info
	}
}

// writer builds text in the Prometheus format.
type writer struct{ text bytes.Buffer }

// family begins a metric. Its samples follow.
func (m *writer) family(name, kind, help string) {
	m.text.WriteString("# HELP sharedtensor_" + name + " " + help + "\n# TYPE sharedtensor_" + name + " " + kind + "\n")
}

// sample writes one value. labels alternates names and values.
func (m *writer) sample(name, value string, labels ...string) {
	m.text.WriteString("sharedtensor_" + name)
	separator := "{"
	for i := 0; i < len(labels); i += 2 {
		m.text.WriteString(separator)
		separator = ","
		m.text.WriteString(labels[i] + `="` + escapeLabel.Replace(strings.ToValidUTF8(labels[i+1], "\ufffd")) + `"`)
	}
	if len(labels) > 0 {
		m.text.WriteByte('}')
	}
	m.text.WriteString(" " + value + "\n")
}

// escapeLabel escapes label values as the format requires.
var escapeLabel = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// counter writes a counter without labels.
func (m *writer) counter(name, help string, value uint64) {
	m.family(name, "counter", help)
	m.sample(name, count(value))
}

// gauge writes a gauge without labels.
func (m *writer) gauge(name, help, value string) {
	m.family(name, "gauge", help)
	m.sample(name, value)
}

// count formats an integer in full; as a float it would lose digits.
func count(n uint64) string { return strconv.FormatUint(n, 10) }

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'g', -1, 64) }

func truth(is bool) string {
	if is {
		return "1"
	}
	return "0"
}

func (m *writer) about(info endpoint.ServerInfo) {
	m.family("server_info", "gauge", "The server: always 1, what it is stands in the labels.")
	labels := []string{
		"server_id", info.ID, "version", info.Version, "label", info.Label, "socket_path", info.Socket, "pid", strconv.Itoa(int(info.PID)),
	}
	if info.DeviceIndex >= 0 { // host memory has no index
		labels = append(labels, "device_index", strconv.Itoa(info.DeviceIndex))
	}
	m.sample("server_info", "1", labels...)
	m.gauge("start_time_seconds", "When the server began, in seconds since 1970.",
		strconv.FormatFloat(float64(info.StartedAt.UnixNano())/float64(time.Second), 'f', 3, 64))
	m.gauge("uptime_seconds", "How long the server has been there.", seconds(info.Uptime))
	m.gauge("running", "Whether the server has a socket and is not shutting down.", truth(info.Running))
	m.gauge("ready", "Whether the server accepts clients.", truth(info.Ready))
}

func (m *writer) counts(s endpoint.ServerStats, notAdopted int) {
	m.counter("requests_total", "Requests of all kinds.", s.Requests)
	m.counter("request_errors_total", "Requests that were answered with an error.", s.Errors)
	m.gauge("clients", "Clients that are connected.", count(s.Clients))
	m.gauge("models", "Names that can be acquired.", count(s.Models))
	m.gauge("model_versions", "Versions whose memory is not freed.", count(s.Versions))
	m.gauge("model_versions_not_adopted", "Kept versions of an earlier owner that the server cannot map.", strconv.Itoa(notAdopted))
	m.gauge("leases", "Leases on versions.", count(s.Leases))
	m.gauge("watchers", "Subscriptions to events.", count(s.Watchers))
	m.gauge("objects", "Managed objects.", count(s.Objects))
	m.gauge("cached_objects", "Managed objects that are found in the cache.", count(s.CachedObjects))
}

func (m *writer) cache(s endpoint.ServerStats) {
	m.counter("cache_hits_total", "Cached calls whose result was there.", s.CacheHits)
	m.counter("cache_misses_total", "Cached calls that began a run.", s.CacheMisses)
	m.counter("cache_joins_total", "Cached calls that waited for the run of another.", s.CacheJoins)
	m.counter("cache_failures_total", "Runs for the cache that failed.", s.CacheFailures)
	m.counter("cache_evictions_total", "Cached results for which there was no room.", s.CacheEvictions)
	m.counter("cache_expirations_total", "Cached results that were too old.", s.CacheExpirations)
	m.counter("cache_invalidations_total", "Cached results that were invalidated.", s.CacheInvalidations)
	m.gauge("cache_entries", "Cached results.", count(s.CacheEntries))
	m.gauge("cache_bytes", "Size of the memory and encoding of cached results.", count(s.CacheBytes))
	m.gauge("inflight_calls", "Cached results that are being made.", count(s.Inflight))
}

func (m *writer) tasks(s endpoint.ServerStats) {
	m.counter("task_submissions_total", "Tasks that were submitted.", s.TaskSubmissions)
	m.family("tasks_finished_total", "counter", "Tasks that have ended, by how.")
	m.sample("tasks_finished_total", count(s.TasksCompleted), "state", string(endpoint.TaskCompleted))
	m.sample("tasks_finished_total", count(s.TasksFailed), "state", string(endpoint.TaskFailed))
	m.sample("tasks_finished_total", count(s.TasksCancelled), "state", string(endpoint.TaskCancelled))
	m.counter("tasks_expired_total", "Tasks that had ended and were too old to be kept.", s.TasksExpired)
	m.family("tasks", "gauge", "Tasks that are known, by where they stand.")
	m.sample("tasks", count(s.TasksPending), "state", string(endpoint.TaskPending))
	m.sample("tasks", count(s.TasksRunning), "state", string(endpoint.TaskRunning))
	m.sample("tasks", count(s.Tasks-min(s.Tasks, s.TasksPending+s.TasksRunning)), "state", "finished")
}

func (m *writer) memory(info endpoint.ServerInfo) {
	names := map[string]string{}
	for _, d := range info.Devices {
		names[d.UUID] = shortName(d)
	}
	m.family("memory_owned_bytes", "gauge", "Memory that the server has, by device and by what it is for. Each piece counts once.")
	for _, use := range info.Memory {
		m.sample("memory_owned_bytes", count(use.Bytes), "device", cmp.Or(names[use.Device], use.Type), "uuid", use.Device, "use", string(use.Use))
	}
	m.gauge("memory_mapped_bytes", "What clients have of it by leases and references, each client for itself.", count(info.Stats.BytesMapped))
	m.family("device_info", "gauge", "The devices: always 1, what they are stands in the labels.")
	for _, d := range slices.SortedFunc(slices.Values(info.Devices), func(a, b endpoint.DeviceInfo) int { return cmp.Compare(a.UUID, b.UUID) }) {
		m.sample("device_info", "1", "device", shortName(d), "uuid", d.UUID, "name", d.Name)
	}
}

// placements writes the metrics of copies of versions, by device.
func (m *writer) placements(list []endpoint.PlacementDevice) {
	if len(list) == 0 {
		return
	}
	each := func(name, kind, help string, value func(endpoint.PlacementDevice) string) {
		m.family(name, kind, help)
		for _, p := range list {
			m.sample(name, value(p), "device", shortName(p.Device), "uuid", p.Device.UUID)
		}
	}
	size := func(n int64) string { return count(uint64(max(n, 0))) }
	each("placements", "gauge", "Copies of versions on other devices.", func(p endpoint.PlacementDevice) string { return strconv.Itoa(p.Placements) })
	each("placement_bytes", "gauge", "Size of the copies.", func(p endpoint.PlacementDevice) string { return size(p.Bytes) })
	each("placement_budget_bytes", "gauge", "Limit on the size of the copies.", func(p endpoint.PlacementDevice) string { return size(p.Budget) })
	each("placement_hits_total", "counter", "Requests that found a copy.", func(p endpoint.PlacementDevice) string { return count(p.Hits) })
	each("placement_copies_total", "counter", "Copies that were made.", func(p endpoint.PlacementDevice) string { return count(p.Copies) })
	each("placement_copied_bytes_total", "counter", "Size of the copies that were made.", func(p endpoint.PlacementDevice) string { return size(p.CopiedBytes) })
	each("placement_copy_seconds_total", "counter", "Time that copies took.", func(p endpoint.PlacementDevice) string { return seconds(p.CopyTime) })
	each("placement_evictions_total", "counter", "Copies without holders that were freed for lack of room.", func(p endpoint.PlacementDevice) string { return count(p.Evictions) })
	each("placement_failures_total", "counter", "Copies that could not be made.", func(p endpoint.PlacementDevice) string { return count(p.Failures) })
}

// reuse writes the metrics of reused memory.
func (m *writer) reuse(s endpoint.ServerStats) {
	m.family("result_slabs_total", "counter", "Results in memory that is used again, by whether there was some, there was none yet, or there was no room for more.")
	m.sample("result_slabs_total", count(s.SlabsReused), "memory", "reused")
	m.sample("result_slabs_total", count(s.SlabsFresh), "memory", "fresh")
	m.sample("result_slabs_total", count(s.SlabsRefused), "memory", "refused")
	m.gauge("pool_slabs", "Pieces of memory that pools of the server's process keep for publications to come.", count(s.PoolSlabs))
	m.gauge("pool_bytes", "Size of the memory that pools of the server's process keep.", count(s.PoolBytes))
	m.family("pool_allocations_total", "counter", "Allocations from pools, by whether there was memory, there was none, or others still had it.")
	m.sample("pool_allocations_total", count(s.PoolReused), "memory", "reused")
	m.sample("pool_allocations_total", count(s.PoolFresh-min(s.PoolBusy, s.PoolFresh)), "memory", "fresh")
	m.sample("pool_allocations_total", count(s.PoolBusy), "memory", "busy")
}

// shortName returns the device's name in commands: host, cuda:0.
func shortName(d endpoint.DeviceInfo) string {
	if d.Type == driver.CPU.String() {
		return driver.Info{Type: driver.CPU}.String()
	}
	return d.Type + ":" + strconv.Itoa(d.Index)
}

func (m *writer) endpoints(list []endpoint.EndpointStats) {
	each := func(name, help string, value func(endpoint.EndpointStats) uint64) {
		m.family(name, "counter", help)
		for _, e := range list {
			m.sample(name, count(value(e)), "endpoint", e.Name)
		}
	}
	each("endpoint_calls_total", "Calls, submitted tasks and streams included.", func(e endpoint.EndpointStats) uint64 { return e.Calls })
	each("endpoint_cache_hits_total", "Calls with a result that was there or that the run of another call made.",
		func(e endpoint.EndpointStats) uint64 { return e.CacheHits })
	each("endpoint_uncached_total", "Calls that were not cached because an argument was in memory that may still be written.",
		func(e endpoint.EndpointStats) uint64 { return e.Uncached })
	each("endpoint_failures_total", "Calls that ended with an error.", func(e endpoint.EndpointStats) uint64 { return e.Failures })
	each("endpoint_run_failures_total", "Runs of the function that failed.", func(e endpoint.EndpointStats) uint64 { return e.Errors })
	m.family("endpoint_workers", "gauge", "Clients that run the function; 0 for an endpoint of the server's own.")
	for _, e := range list {
		m.sample("endpoint_workers", count(e.Workers), "endpoint", e.Name)
	}
	const runs = "endpoint_run_duration_seconds"
	m.family(runs, "histogram", "What runs of the function took. The bounds are the same for all owners, so that a sum over owners has quantiles.")
	for _, e := range list {
		var below uint64
		for i := 0; endpoint.DurationBound(i) < math.MaxInt64; i++ {
			if i < len(e.Durations) {
				below += e.Durations[i]
			}
			m.sample(runs+"_bucket", count(below), "endpoint", e.Name, "le", seconds(endpoint.DurationBound(i)))
		}
		m.sample(runs+"_bucket", count(e.Runs), "endpoint", e.Name, "le", "+Inf")
		m.sample(runs+"_sum", seconds(e.Total), "endpoint", e.Name)
		m.sample(runs+"_count", count(e.Runs), "endpoint", e.Name)
	}
}

// refusals writes what the access policy refused.
func (m *writer) refusals(list []endpoint.Refusals) {
	m.family("policy_refusals_total", "counter", "Clients and requests that the access policy refused, by the right that they lacked.")
	counts := map[string]uint64{}
	for _, r := range list {
		counts[r.Right] = r.Count
	}
	for _, right := range access.Rights() { // a rate needs the value before the first refusal
		m.sample("policy_refusals_total", count(counts[right.String()]), "right", right.String())
	}
}

// limits writes the metrics of limits.
func (m *writer) limits(list []endpoint.LimitUse) {
	each := func(name, kind, help string, value func(endpoint.LimitUse) (string, bool)) {
		m.family(name, kind, help)
		for _, l := range list {
			if text, there := value(l); there {
				m.sample(name, text, "limit", l.Name)
			}
		}
	}
	bound := func(n int64) (string, bool) { return count(uint64(max(n, 0))), n > 0 }
	each("limit_client", "gauge", "What one client may have, by limit.", func(l endpoint.LimitUse) (string, bool) { return bound(l.Client) })
	each("limit", "gauge", "What all clients may have together, by limit.", func(l endpoint.LimitUse) (string, bool) { return bound(l.All) })
	each("limit_client_used", "gauge", "The most that one client has, by limit.",
		func(l endpoint.LimitUse) (string, bool) { return count(uint64(max(l.Most, 0))), l.Client > 0 })
	each("limit_used", "gauge", "What all clients have together, by limit.",
		func(l endpoint.LimitUse) (string, bool) { return count(uint64(max(l.Used, 0))), true })
	each("limit_refused_total", "counter", "What was refused, dropped or cut off, by limit.",
		func(l endpoint.LimitUse) (string, bool) { return count(l.Refused), true })
}
