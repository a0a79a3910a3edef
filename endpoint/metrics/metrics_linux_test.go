package metrics_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"expvar"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/endpointtest"
	"github.com/sharedtensor/sharedtensor/endpoint/metrics"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// family is a metric as parsed from the text format.
type family struct {
	kind, help string
	samples    map[string]float64 // by name and labels, as series formats them
}

// series returns the name of a sample in parseMetrics: the labels sorted, their values quoted as in Go.
func series(name string, labels map[string]string) string {
	for i, label := range slices.Sorted(maps.Keys(labels)) {
		if i == 0 {
			name += "{"
		}
		name += label + "=" + strconv.Quote(labels[label]) + ","
	}
	return name
}

var (
	metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*`)
	labelName  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*`)
)

// parseMetrics parses the text format of Prometheus strictly: HELP and TYPE occur once, first and together; samples
// follow their family; no series is repeated; counters, histograms and units have conventional names.
func parseMetrics(text string) (map[string]*family, error) {
	families := map[string]*family{}
	if text != "" && !strings.HasSuffix(text, "\n") {
		return nil, errors.New("the last line does not end")
	}
	var name string
	var now *family
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if rest, is := strings.CutPrefix(line, "# HELP "); is {
			var help string
			name, help, _ = strings.Cut(rest, " ")
			if families[name] != nil || help == "" || metricName.FindString(name) != name {
				return nil, fmt.Errorf("%q: twice, without help, or no name", line)
			}
			now = &family{help: help, samples: map[string]float64{}}
			families[name] = now
			continue
		}
		if rest, is := strings.CutPrefix(line, "# TYPE "); is {
			of, kind, _ := strings.Cut(rest, " ")
			if of != name || now.kind != "" || !slices.Contains([]string{"counter", "gauge", "histogram"}, kind) {
				return nil, fmt.Errorf("%q: not after its help, twice, or no type", line)
			}
			if (kind == "counter") != strings.HasSuffix(name, "_total") {
				return nil, fmt.Errorf("%s: counters end in _total, and others do not", name)
			}
			now.kind = kind
			continue
		}
		if err := now.sample(name, line); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
	}
	return families, nil
}

// sample parses one line.
func (f *family) sample(name, line string) error {
	of := metricName.FindString(line)
	if f == nil || f.kind == "" || of == "" {
		return errors.New("no sample, or of no family")
	}
	rest := line[len(of):]
	labels := map[string]string{}
	if strings.HasPrefix(rest, "{") {
		for rest[0] != '}' {
			rest = rest[1:]
			label := labelName.FindString(rest)
			rest = rest[len(label):]
			if _, twice := labels[label]; label == "" || twice || !strings.HasPrefix(rest, `="`) {
				return errors.New("a bad label, or one that comes twice")
			}
			var value strings.Builder
			for rest = rest[2:]; ; rest = rest[1:] {
				if rest == "" {
					return errors.New("a label does not end")
				}
				if rest[0] == '"' {
					break
				}
				if rest[0] != '\\' {
					value.WriteByte(rest[0])
					continue
				}
				rest = rest[1:]
				known, ok := map[byte]byte{'\\': '\\', '"': '"', 'n': '\n'}[rest[0]]
				if !ok {
					return errors.New("an escape that the format does not have")
				}
				value.WriteByte(known)
			}
			labels[label] = value.String()
			if rest = rest[1:]; rest == "" || rest[0] != ',' && rest[0] != '}' {
				return errors.New("labels do not end")
			}
		}
		rest = rest[1:]
	}
	_, bound := labels["le"]
	switch {
	case f.kind != "histogram" && (of != name || bound), f.kind == "histogram" && (of == name+"_bucket") != bound:
		return errors.New("does not fit the type")
	case f.kind == "histogram" && !bound && of != name+"_sum" && of != name+"_count":
		return errors.New("of another family")
	}
	value, err := strconv.ParseFloat(strings.TrimPrefix(rest, " "), 64)
	if err != nil || !strings.HasPrefix(rest, " ") {
		return fmt.Errorf("no value: %w", err)
	}
	key := series(of, labels)
	if _, twice := f.samples[key]; twice {
		return errors.New("the same series twice")
	}
	f.samples[key] = value
	return nil
}

// metricsOf returns the parsed output of Write.
func metricsOf(t testing.TB, info endpoint.ServerInfo) map[string]*family {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, metrics.Write(&b, info))
	families, err := parseMetrics(b.String())
	require.NoError(t, err, b.String())
	return families
}

func TestMetricsParser(t *testing.T) {
	t.Parallel()
	const head = "# HELP a_total h\n# TYPE a_total counter\n"
	good, err := parseMetrics(head + "a_total{x=\"1\\\\\\\"\\n,}\",y=\"\"} 3\n")
	require.NoError(t, err)
	require.Equal(t, map[string]float64{series("a_total", map[string]string{"x": "1\\\"\n,}", "y": ""}): 3}, good["a_total"].samples)
	for _, bad := range []string{
		"a_total 1\n", head + "a_total 1", head + "b_total 1\n", head + "a_total\n", head + "a_total x\n", head + "a_total 1\na_total 2\n",
		head + head, "# TYPE a_total counter\n", "# HELP a h\n# TYPE a counter\n", "# HELP a_total h\n# TYPE a_total gauge\n",
		head + `a_total{x="1} 1` + "\n", head + `a_total{x="\t"} 1` + "\n", head + `a_total{1x="1"} 1` + "\n", head + `a_total{x="1",x="1"} 1` + "\n",
		head + `a_total{le="1"} 1` + "\n", "# HELP s h\n# TYPE s histogram\ns 1\n", "# HELP s h\n# TYPE s histogram\ns_bucket 1\n", "# HELP s h\n# TYPE s histogram\ns_other 1\n",
	} {
		_, err := parseMetrics(bad)
		require.Error(t, err, bad)
	}
}

// Each number of the info is in a metric, identified by its value.
func TestMetricsComplete(t *testing.T) {
	t.Parallel()
	var info endpoint.ServerInfo
	odd := "quote \" back \\ line \n end \xff"
	info.ID, info.Version, info.Label, info.Socket, info.PID, info.DeviceIndex = "id", "v1", odd, "/run/a-1.sock", 42, 1
	info.StartedAt, info.Uptime, info.Running = time.Unix(1_700_000_000, 5e8), 90*time.Minute, true
	info.Devices = []endpoint.DeviceInfo{{UUID: "u1", Type: "cpu"}, {UUID: "u2", Type: "cuda", Index: 3, Name: "GPU"}}
	info.Memory = []endpoint.MemoryUse{
		{Device: "u1", Type: "cpu", Use: endpoint.MemoryModels, Bytes: 1 << 60}, {Device: "u2", Type: "cuda", Use: endpoint.MemoryTasks, Bytes: 1001},
		{Device: "gone", Type: "cuda", Use: endpoint.MemoryTasks, Bytes: 1002},
	}
	info.Stats = endpoint.ServerStats{
		Requests: math.MaxUint64, Errors: 2, CacheHits: 3, CacheMisses: 4, CacheJoins: 5, CacheInvalidations: 6, CacheEntries: 7, CacheBytes: 8, Inflight: 9,
		Objects: 10, TaskSubmissions: 11, Tasks: 50, TasksRunning: 13, Models: 14, Versions: 15, Leases: 16, Watchers: 17, BytesOwned: 18, BytesMapped: 19,
		Clients: 20, CachedObjects: 21, CacheFailures: 22, CacheEvictions: 23, CacheExpirations: 24, TasksPending: 25, TasksCompleted: 26,
		TasksFailed: 27, TasksCancelled: 28, TasksExpired: 29,
		SlabsReused: 30, SlabsFresh: 31, SlabsRefused: 32, PoolSlabs: 33, PoolBytes: 34, PoolReused: 35, PoolFresh: 36, PoolBusy: 6,
	}
	info.Endpoints = []endpoint.EndpointStats{
		{Name: odd, Calls: 5, CacheHits: 3, Uncached: 6, Failures: 2, Runs: 4, Errors: 1, P50: time.Microsecond, P90: time.Millisecond, P99: time.Minute, Total: time.Hour, Durations: []uint64{0, 2, 0, 1}},
		{Name: "idle"},
	}
	clean := strings.ReplaceAll(odd, "\xff", "\ufffd")
	of := func(name string) map[string]string { return map[string]string{"endpoint": name} }
	want := map[string]float64{
		series("server_info", map[string]string{"server_id": "id", "version": "v1", "label": clean, "socket_path": "/run/a-1.sock", "device_index": "1", "pid": "42"}): 1,
		"start_time_seconds": 1_700_000_000.5, "uptime_seconds": 5400, "running": 1, "ready": 0,
		"requests_total": math.MaxUint64, "request_errors_total": 2, "clients": 20, "models": 14, "model_versions": 15, "model_versions_not_adopted": 2, "leases": 16, "watchers": 17,
		"objects": 10, "cached_objects": 21,
		"cache_hits_total": 3, "cache_misses_total": 4, "cache_joins_total": 5, "cache_failures_total": 22, "cache_evictions_total": 23,
		"cache_expirations_total": 24, "cache_invalidations_total": 6, "cache_entries": 7, "cache_bytes": 8, "inflight_calls": 9,
		"task_submissions_total": 11, "tasks_expired_total": 29,
		series("tasks_finished_total", map[string]string{"state": "completed"}): 26, series("tasks_finished_total", map[string]string{"state": "failed"}): 27,
		series("tasks_finished_total", map[string]string{"state": "cancelled"}): 28,
		series("tasks", map[string]string{"state": "pending"}):                  25, series("tasks", map[string]string{"state": "running"}): 13,
		series("tasks", map[string]string{"state": "finished"}):                                           12,
		series("memory_owned_bytes", map[string]string{"device": "host", "uuid": "u1", "use": "models"}):  1 << 60,
		series("memory_owned_bytes", map[string]string{"device": "cuda:3", "uuid": "u2", "use": "tasks"}): 1001,
		series("memory_owned_bytes", map[string]string{"device": "cuda", "uuid": "gone", "use": "tasks"}): 1002,
		"memory_mapped_bytes": 19,
		series("result_slabs_total", map[string]string{"memory": "reused"}): 30, series("result_slabs_total", map[string]string{"memory": "fresh"}): 31,
		series("result_slabs_total", map[string]string{"memory": "refused"}): 32, "pool_slabs": 33, "pool_bytes": 34,
		series("pool_allocations_total", map[string]string{"memory": "reused"}): 35, series("pool_allocations_total", map[string]string{"memory": "fresh"}): 30,
		series("pool_allocations_total", map[string]string{"memory": "busy"}):                     6,
		series("device_info", map[string]string{"device": "host", "uuid": "u1", "name": ""}):      1,
		series("device_info", map[string]string{"device": "cuda:3", "uuid": "u2", "name": "GPU"}): 1,
		series("endpoint_calls_total", of(clean)):                                                 5, series("endpoint_calls_total", of("idle")): 0,
		series("endpoint_cache_hits_total", of(clean)): 3, series("endpoint_cache_hits_total", of("idle")): 0,
		series("endpoint_uncached_total", of(clean)): 6, series("endpoint_uncached_total", of("idle")): 0,
		series("endpoint_workers", of(clean)): 0, series("endpoint_workers", of("idle")): 0,
		series("endpoint_failures_total", of(clean)): 2, series("endpoint_failures_total", of("idle")): 0,
		series("endpoint_run_failures_total", of(clean)): 1, series("endpoint_run_failures_total", of("idle")): 0,
		series("endpoint_run_duration_seconds_sum", of(clean)): 3600, series("endpoint_run_duration_seconds_sum", of("idle")): 0,
		series("endpoint_run_duration_seconds_count", of(clean)): 4, series("endpoint_run_duration_seconds_count", of("idle")): 0,
	}
	bucket := func(endpoint, le string) string {
		return series("endpoint_run_duration_seconds_bucket", map[string]string{"endpoint": endpoint, "le": le})
	}
	for i, bound := range []string{
		"8.192e-06", "1.6384e-05", "3.2768e-05", "6.5536e-05", "0.000131072", "0.000262144", "0.000524288", "0.001048576", "0.002097152",
		"0.004194304", "0.008388608", "0.016777216", "0.033554432", "0.067108864", "0.134217728", "0.268435456", "0.536870912", "1.073741824",
		"2.147483648", "4.294967296", "8.589934592", "17.179869184", "34.359738368", "68.719476736",
	} {
		below := []float64{0, 2, 2, 3}
		want[bucket(clean, bound)], want[bucket("idle", bound)] = below[min(i, 3)], 0
	}
	want[bucket(clean, "+Inf")], want[bucket("idle", "+Inf")] = 4, 0
	info.Limits = []endpoint.LimitUse{{Name: "some", Client: 71, All: 72, Most: 73, Used: 74, Refused: 75}, {Name: "one", Client: 76}}
	some, one := map[string]string{"limit": "some"}, map[string]string{"limit": "one"}
	want[series("limit_client", some)], want[series("limit", some)] = 71, 72
	want[series("limit_client_used", some)], want[series("limit_used", some)], want[series("limit_refused_total", some)] = 73, 74, 75
	want[series("limit_client", one)], want[series("limit_client_used", one)] = 76, 0
	want[series("limit_used", one)], want[series("limit_refused_total", one)] = 0, 0
	info.Placements = []endpoint.PlacementDevice{{
		Device: endpoint.DeviceInfo{UUID: "u2", Type: "cuda", Index: 3}, Budget: 80, Bytes: 81, Placements: 82, Hits: 83, Copies: 84, CopiedBytes: 85,
		CopyTime: 86 * time.Second, Evictions: 87, Failures: 88,
	}}
	for name, value := range map[string]float64{
		"placement_budget_bytes": 80, "placement_bytes": 81, "placements": 82, "placement_hits_total": 83, "placement_copies_total": 84,
		"placement_copied_bytes_total": 85, "placement_copy_seconds_total": 86, "placement_evictions_total": 87, "placement_failures_total": 88,
	} {
		want[series(name, map[string]string{"device": "cuda:3", "uuid": "u2"})] = value
	}
	info.NotAdopted = make([]endpoint.NotAdopted, 2)
	info.Refusals = []endpoint.Refusals{{Right: "publish", Count: 77}}
	for _, right := range access.Rights() {
		want[series("policy_refusals_total", map[string]string{"right": right.String()})] = 0
	}
	want[series("policy_refusals_total", map[string]string{"right": "publish"})] = 77
	for name, f := range metricsOf(t, info) {
		require.NotEmpty(t, f.samples, name)
		for key, value := range f.samples {
			key = strings.TrimPrefix(key, "sharedtensor_")
			require.Contains(t, want, key)
			require.InEpsilon(t, want[key]+1, value+1, 1e-12, key)
			delete(want, key)
		}
	}
	require.Empty(t, want)
	var b bytes.Buffer
	require.NoError(t, metrics.Write(&b, info))
	require.Contains(t, b.String(), "\nsharedtensor_requests_total 18446744073709551615\n", "in full")
	require.ErrorIs(t, metrics.Write(brokenWriter{}, info), io.ErrClosedPipe)
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

type sizeIn struct{ Size int64 }

type sizeOut struct{ X *tensor.Tensor }

// start returns a client of a new owner with two endpoints.
func start(t *testing.T) *endpointtest.Owner {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "double", func(_ context.Context, n int) (int, error) { return 2 * n, nil }, endpoint.Cached()))
	require.NoError(t, endpoint.Register(r, "model", func(_ context.Context, in sizeIn) (sizeOut, error) {
		x, err := tensor.Empty(dev, tensor.Float32, tensor.Shape{in.Size})
		return sizeOut{x}, err
	}, endpoint.Managed()))
	return endpointtest.Start(t, endpoint.ServerOptions{Registry: r, Devices: []driver.Device{dev}})
}

// Numbers counted by another process are unchanged. Host memory has no index, which the metrics show by a missing label.
func TestMetricsOfOwner(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	o := start(t)
	empty := metricsOf(t, endpoint.ServerInfo{})
	before, err := o.Client.ServerInfo(ctx)
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, o.Client.Call(ctx, "double", 1, nil))
	}
	ref, err := endpoint.CallManaged[any](ctx, o.Client, "model", sizeIn{Size: 1024})
	require.NoError(t, err)
	defer ref.Close()
	info, err := o.Client.ServerInfo(ctx)
	require.NoError(t, err)
	got := metricsOf(t, info)
	require.Len(t, got, len(empty), "there are the same metrics whatever there is")
	value := func(of map[string]*family, name string, labels map[string]string) float64 {
		t.Helper()
		f := of["sharedtensor_"+strings.TrimSuffix(strings.TrimSuffix(name, "_count"), "_sum")]
		require.NotNil(t, f, name)
		key := series("sharedtensor_"+name, labels)
		require.Contains(t, f.samples, key)
		return f.samples[key]
	}
	double := map[string]string{"endpoint": "double"}
	require.EqualValues(t, 3, value(got, "endpoint_calls_total", double))
	require.EqualValues(t, 2, value(got, "endpoint_cache_hits_total", double))
	require.EqualValues(t, 1, value(got, "endpoint_run_duration_seconds_count", double))
	require.Positive(t, value(got, "endpoint_run_duration_seconds_sum", double))
	require.EqualValues(t, 4096, value(got, "memory_owned_bytes", map[string]string{
		"device": "host", "uuid": o.Device.Info().UUID.String(), "use": "objects"}))
	require.EqualValues(t, 4096, value(got, "memory_mapped_bytes", nil))
	require.EqualValues(t, 1, value(got, "ready", nil))
	first := metricsOf(t, before)
	for name, f := range got {
		if f.kind == "counter" {
			for key, v := range f.samples {
				require.GreaterOrEqual(t, v, first[name].samples[key], key)
			}
		}
	}
	require.Negative(t, info.DeviceIndex)
	var text bytes.Buffer
	require.NoError(t, metrics.Write(&text, info))
	require.Contains(t, text.String(), "sharedtensor_server_info{server_id=")
	require.NotContains(t, text.String(), "device_index")
	for _, l := range info.Limits {
		require.Contains(t, text.String(), "sharedtensor_limit_refused_total{limit=\""+l.Name+"\"} ")
	}
}

func TestVars(t *testing.T) {
	t.Parallel()
	o := start(t)
	var info struct {
		Server string `json:"server"`
		PID    int    `json:"pid"`
		Error  string `json:"error"`
	}
	read := func() {
		t.Helper()
		require.NoError(t, json.Unmarshal([]byte(expvar.Func(metrics.Vars(o.Client, 10*time.Second)).String()), &info))
	}
	read()
	require.Equal(t, "SharedTensorServer", info.Server)
	require.Equal(t, os.Getpid(), info.PID)
	require.Empty(t, info.Error)
	require.NoError(t, o.Client.Close())
	read()
	require.NotEmpty(t, info.Error)
}

func TestClientMetrics(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	require.NoError(t, metrics.WriteClient(&b, endpoint.ClientStats{
		State: endpoint.StateConnected, Connections: 3, DialFailures: 7, Handles: 4, BytesMapped: 1 << 40, Watchers: 2, References: 5,
		Versions: []endpoint.VersionInUse{
			{Name: "llm", Version: 16, Newest: 17, Handles: 1, Bytes: 100},
			{Name: "llm", Version: 17, Newest: 18, Handles: 2, Bytes: 23},
			{Name: "vad", Version: 1, Newest: 1, Handles: 1, Bytes: 1},
		},
	}))
	for _, line := range []string{
		"# TYPE sharedtensor_client_connected gauge", "sharedtensor_client_connected 1", "sharedtensor_client_connections_total 3",
		"sharedtensor_client_dial_failures_total 7", "sharedtensor_client_handles 4", "sharedtensor_client_mapped_bytes 1099511627776",
		"sharedtensor_client_watchers 2", "sharedtensor_client_references 5",
		`sharedtensor_client_version{name="llm"} 17`, `sharedtensor_client_newest_version{name="llm"} 18`,
		`sharedtensor_client_versions{name="llm"} 2`, `sharedtensor_client_version_bytes{name="llm"} 123`, `sharedtensor_client_version{name="vad"} 1`,
	} {
		require.Contains(t, b.String(), line+"\n")
	}
}
