package command

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// topSnapshot is the state of an owner at one moment, for top's view and its JSON.
type topSnapshot struct {
	At    time.Time           `json:"at"`
	Owner endpoint.ServerInfo `json:"owner"`
	// Rates cover the time since the previous snapshot. It is nil in the first one.
	Rates   *topRates            `json:"rates,omitempty"`
	Devices []topDevice          `json:"devices"`
	Tasks   []endpoint.TaskInfo  `json:"tasks"`
	Models  []endpoint.ModelInfo `json:"models"`
	// GPUs are the GPUs of this host with the processes that hold their memory, also those outside sharedtensor.
	GPUs []gpuUse `json:"gpus,omitempty"`
	// GPUNote is the reason why GPUs are not listed. It is empty on a host without a GPU.
	GPUNote string `json:"gpu_note,omitempty"`
}

// topRates are events per second. Requests of top itself are excluded.
type topRates struct {
	topCalls
	// Requests counts requests of all kinds.
	Requests float64 `json:"requests_per_second"`
	Errors   float64 `json:"errors_per_second"`
	// Endpoints holds the calls of each endpoint by name.
	Endpoints map[string]topCalls `json:"endpoints"`
}

// topCalls are calls per second by outcome.
type topCalls struct {
	Calls    float64 `json:"calls_per_second"`
	Hits     float64 `json:"cache_hits_per_second"`
	Runs     float64 `json:"runs_per_second"`
	Failures float64 `json:"failures_per_second"`
}

// add adds other to c.
func (c *topCalls) add(other topCalls) {
	c.Calls += other.Calls
	c.Hits += other.Hits
	c.Runs += other.Runs
	c.Failures += other.Failures
}

// topDevice describes the memory of a device. Its parts can add up to more than the total, because versions may share
// memory.
type topDevice struct {
	Device string     `json:"device"`
	UUID   string     `json:"uuid"`
	Name   string     `json:"name,omitempty"`
	Bytes  int64      `json:"bytes"`
	Models []topModel `json:"models"`
	// Others lists memory that does not belong to models.
	Others []topUse `json:"others"`
}

// topUse is the memory of a device for one purpose.
type topUse struct {
	Use      endpoint.MemoryUsage `json:"use"`
	Bytes    int64                `json:"bytes"`
	Storages int                  `json:"storages"`
}

// topModel is the memory of a version on a device.
type topModel struct {
	Name    string `json:"name"`
	Version uint64 `json:"version"`
	State   string `json:"state"`
	Bytes   int64  `json:"bytes"`
	Holders int    `json:"holders"`
}

// versionKey identifies a version.
type versionKey struct {
	name    string
	version uint64
}

// sampler takes snapshots of an owner.
type sampler struct {
	owner  *cli.OwnerFlags
	client *endpoint.Client
	gpus   gpuReader

	asked  uint64 // requests sent by this sampler
	before *topSnapshot
	known  uint64                                   // requests sent when before was taken
	sizes  map[versionKey]map[driver.UUID]topExtent // devices of each version; these never change
	server string                                   // the server of sizes
}

// topExtent is the size of a version on a device.
type topExtent struct {
	kind  driver.DeviceType
	bytes int64
}

// take requests everything that is shown from the owner.
func (s *sampler) take(ctx context.Context) (*topSnapshot, error) {
	s.asked += 3 // List and Tasks are counted after the owner's snapshot
	info, err := s.client.ServerInfo(ctx)
	if err != nil {
		return nil, err
	}
	now := &topSnapshot{At: time.Now(), Owner: info, Tasks: []endpoint.TaskInfo{}, Models: []endpoint.ModelInfo{}}
	own := s.asked - s.known
	s.known = s.asked
	if s.server != info.ID {
		s.server, s.sizes = info.ID, map[versionKey]map[driver.UUID]topExtent{}
	}
	models, err := s.client.List(ctx)
	if err != nil {
		return nil, err
	}
	now.Models = append(now.Models, models...)
	tasks, err := s.client.Tasks(ctx, endpoint.TaskFilter{})
	if err != nil {
		return nil, err
	}
	now.Tasks = append(now.Tasks, tasks...)
	if err := s.place(ctx, models); err != nil {
		return nil, err
	}
	now.Devices = s.devices(now)
	now.Rates = rates(s.before, now, own)
	now.addGPUs(ctx, &s.gpus)
	now.sort()
	s.before = now
	return now, nil
}

// place requests the devices of new versions and drops versions that no longer exist. A version that disappears in the
// meantime gets no devices.
func (s *sampler) place(ctx context.Context, models []endpoint.ModelInfo) error {
	sizes := map[versionKey]map[driver.UUID]topExtent{}
	for _, m := range models {
		for _, v := range m.Versions {
			key := versionKey{m.Name, v.Version}
			if old, found := s.sizes[key]; found {
				sizes[key] = old
				continue
			}
			s.asked++
			manifest, err := s.client.Manifest(ctx, m.Name, v.Version)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil {
				continue
			}
			sizes[key] = map[driver.UUID]topExtent{}
			for _, storage := range manifest.Storages {
				e := sizes[key][storage.Device]
				sizes[key][storage.Device] = topExtent{storage.DeviceType, e.bytes + storage.Bytes}
			}
		}
	}
	s.sizes = sizes
	return nil
}

// devices groups the versions by device: first the owner's devices, then other devices with memory.
func (s *sampler) devices(now *topSnapshot) []topDevice {
	list, at := []topDevice{}, map[string]int{}
	find := func(uuid, kind string) *topDevice {
		i, found := at[uuid]
		if !found {
			i = len(list)
			at[uuid] = i
			list = append(list, topDevice{Device: kind, UUID: uuid, Models: []topModel{}, Others: []topUse{}})
		}
		return &list[i]
	}
	for _, d := range now.Owner.Devices {
		uuid := d.UUID
		find(uuid, driverName(d)).Name = d.Name
	}
	for _, m := range now.Models {
		for _, v := range m.Versions {
			for uuid, e := range s.sizes[versionKey{m.Name, v.Version}] {
				d := find(uuid.String(), e.kind.String())
				d.Models = append(d.Models, topModel{m.Name, v.Version, versionState(m, v), e.bytes, len(v.Holders)})
			}
		}
	}
	for _, use := range now.Owner.Memory {
		d := find(use.Device, use.Type)
		d.Bytes += int64(use.Bytes)
		if use.Use != endpoint.MemoryModels {
			d.Others = append(d.Others, topUse{use.Use, int64(use.Bytes), int(use.Storages)})
		}
	}
	for i := range list {
		slices.SortStableFunc(list[i].Models, func(a, b topModel) int { return cmp.Compare(b.Bytes, a.Bytes) })
	}
	return list
}

// driverName returns the name of a device as in other commands: host, cuda:0.
func driverName(d endpoint.DeviceInfo) string {
	if d.Type == driver.CPU.String() {
		return "host"
	}
	return driver.Info{Type: driver.CUDA, Index: d.Index}.String()
}

// rates compares two snapshots of one owner. It returns nil if they cannot be compared. own is the number of requests
// of this sampler between them.
func rates(before, now *topSnapshot, own uint64) *topRates {
	if before == nil || before.Owner.ID != now.Owner.ID {
		return nil
	}
	seconds := now.At.Sub(before.At).Seconds()
	if seconds <= 0 {
		return nil
	}
	rate := func(from, to uint64) float64 {
		if to < from {
			return 0
		}
		return float64(to-from) / seconds
	}
	r := &topRates{
		Requests: rate(before.Owner.Stats.Requests+own, now.Owner.Stats.Requests),
		Errors:   rate(before.Owner.Stats.Errors, now.Owner.Stats.Errors), Endpoints: map[string]topCalls{},
	}
	old := map[string]endpoint.EndpointStats{}
	for _, e := range before.Owner.Endpoints {
		old[e.Name] = e
	}
	for _, e := range now.Owner.Endpoints {
		was := old[e.Name]
		calls := topCalls{rate(was.Calls, e.Calls), rate(was.CacheHits, e.CacheHits), rate(was.Runs, e.Runs), rate(was.Failures, e.Failures)}
		r.Endpoints[e.Name] = calls
		r.add(calls)
	}
	return r
}

// calls returns the calls per second of an endpoint.
func (t *topSnapshot) calls(name string) float64 {
	if t.Rates == nil {
		return 0
	}
	return t.Rates.Endpoints[name].Calls
}

// sort puts the most interesting entries first: busy endpoints, sessions that hold much, running tasks.
func (t *topSnapshot) sort() {
	slices.SortStableFunc(t.Owner.Endpoints, func(a, b endpoint.EndpointStats) int {
		return cmp.Or(cmp.Compare(t.calls(b.Name), t.calls(a.Name)), cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.Name, b.Name))
	})
	slices.SortStableFunc(t.Owner.Sessions, func(a, b endpoint.SessionInfo) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Session, b.Session))
	})
	rank := func(s endpoint.TaskState) int {
		switch s {
		case endpoint.TaskRunning:
			return 0
		case endpoint.TaskPending:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(t.Tasks, func(a, b endpoint.TaskInfo) int {
		return cmp.Or(cmp.Compare(rank(a.State), rank(b.State)), b.FinishedAt.Compare(a.FinishedAt), a.CreatedAt.Compare(b.CreatedAt))
	})
}
