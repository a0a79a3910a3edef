package server

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// serverKind identifies servers of this package in their description.
const serverKind = "SharedTensorServer"

// sharing names how memory is shared: in place between processes of one host, by handles that a Unix socket
// transfers.
const sharing = "same-host-unix-handles"

// info describes the server.
func (s *Server) info(_ context.Context, r *session.Request) (session.Reply, error) {
	if err := clientOf(r.Session).may(access.Info, ""); err != nil {
		return nil, err
	}
	return &answer{body: s.describe()}, nil
}

// describe returns the server's description.
func (s *Server) describe() message.ServerInfo {
	have := takeMemorySnapshot(s)
	sessions := s.describeSessions(have)
	running := s.Bound() && !s.Sessions.Stopped()
	out := message.ServerInfo{
		Server: s.ID, Kind: serverKind, Version: transport.Version(), Label: s.Label, Socket: message.ValidText(s.Sessions.Socket), DeviceIndex: socketIndex(s.Sessions.Socket),
		PID: int32(os.Getpid()), ParentPID: int32(os.Getppid()), StartedAt: s.started.UnixNano(), Uptime: int64(time.Since(s.started)),
		Running: running, Ready: running && s.serving.Load(), Devices: s.devices.Describe(),
		Capabilities: message.Capabilities{Transport: sharing, Handles: s.support.of(s.devices)},
		Stats:        s.stats(have, sessions), Endpoints: s.describeEndpoints(), Sessions: sessions,
	}
	out.Memory, out.Stats.BytesOwned = have.uses()
	out.Limits, out.Refusals = s.limitUses(), s.authority.refusals()
	out.NotAdopted, out.Placements = s.Models.NotAdopted(), s.Models.Placements()
	return out
}

// socketIndex returns the device index in a path made by SocketPath, or -1 if there is none.
func socketIndex(path string) int32 {
	name, found := strings.CutSuffix(path, ".sock")
	i := strings.LastIndexByte(name, '-')
	if !found || i < 0 {
		return -1
	}
	index, err := strconv.ParseUint(name[i+1:], 10, 31)
	if err != nil {
		return -1
	}
	return int32(index)
}

// support caches which handles the devices can share. Devices find out by trying, so each is queried once.
type support struct {
	mu    sync.Mutex
	known []message.HandleSupport
}

// of queries the devices, or returns their earlier answers. A device that was out of memory is queried again at the
// next call.
func (u *support) of(devices transfer.Devices) []message.HandleSupport {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.known != nil {
		return u.known
	}
	list, final := []message.HandleSupport{}, true
	for uuid, dev := range devices {
		for _, kind := range dev.Probe() {
			row := message.HandleSupport{Device: message.UUID(uuid), Kind: string(kind.Kind), Supported: kind.Err == nil}
			if kind.Err != nil {
				row.Reason = message.CutText(kind.Err.Error(), message.MaxErrorMessage)
				final = final && !errors.Is(kind.Err, driver.ErrOutOfMemory)
			}
			list = append(list, row)
		}
	}
	slices.SortStableFunc(list, func(a, b message.HandleSupport) int { return slices.Compare(a.Device[:], b.Device[:]) })
	if final {
		u.known = list
	}
	return list
}

// stats collects the counters of the server's parts.
func (s *Server) stats(have *memorySnapshot, sessions []message.SessionInfo) message.ServerStats {
	results, tasks, catalogStats := s.Engine.Results.Stats(), s.Engine.Tasks.Stats(), s.Models.Catalog.Stats()
	pools := driver.Pools()
	out := message.ServerStats{
		Requests: s.Sessions.Requests.Load(), Errors: s.Sessions.Failures.Load(),
		CacheHits: results.Hits, CacheMisses: results.Misses, CacheJoins: results.Joins, CacheInvalidations: results.Invalidations,
		CacheFailures: results.Failures, CacheEvictions: results.Evictions, CacheExpirations: results.Expirations,
		CacheEntries: uint64(results.Entries), CacheBytes: uint64(results.Bytes), Inflight: uint64(results.Builds),
		Objects: uint64(s.Engine.Objects.Count()), CachedObjects: have.cached, TaskSubmissions: tasks.Submitted,
		Tasks: uint64(tasks.Pending + tasks.Running + tasks.Kept), TasksRunning: uint64(tasks.Running), TasksPending: uint64(tasks.Pending),
		TasksCompleted: tasks.Succeeded, TasksFailed: tasks.Failed, TasksCancelled: tasks.Cancelled, TasksExpired: tasks.Expired,
		Models: uint64(catalogStats.Names), Versions: uint64(catalogStats.Versions), Leases: uint64(catalogStats.Leases), Watchers: uint64(catalogStats.Watchers),
		SlabsReused: s.Totals.Kept.Reused.Load(), SlabsFresh: s.Totals.Kept.Fresh.Load(), SlabsRefused: s.Totals.Kept.Refused.Load(),
		PoolSlabs: uint64(pools.Slabs), PoolBytes: uint64(pools.Bytes),
		PoolReused: uint64(pools.Reused), PoolFresh: uint64(pools.Fresh), PoolBusy: uint64(pools.Busy),
	}
	for _, session := range sessions {
		if !session.Self {
			out.Clients++
			out.BytesMapped += session.Bytes
		}
	}
	return out
}

func (s *Server) describeEndpoints() []message.EndpointStats {
	var list []message.EndpointStats
	for _, d := range s.Endpoints.List() {
		q, durations := d.Latency.Quantiles(0.5, 0.9, 0.99), d.Latency.Durations() // before Runs, which is not smaller
		list = append(list, message.EndpointStats{
			Name: d.Name, Calls: d.Calls.Load(), CacheHits: d.Hits.Load(), Uncached: d.Uncached.Load(), Failures: d.Failures.Load(),
			Runs: d.Latency.Count.Load(), Errors: d.Latency.Failed.Load(), Total: int64(d.Latency.Total.Load()),
			P50: int64(q[0]), P90: int64(q[1]), P99: int64(q[2]), Durations: durations, Workers: uint64(d.Workers()),
		})
	}
	return list
}

// describeSessions returns the server's own session and its clients, oldest first, with what they hold.
func (s *Server) describeSessions(have *memorySnapshot) []message.SessionInfo {
	list := s.describeClients()
	slices.SortFunc(list, func(a, b message.SessionInfo) int { return cmp.Compare(a.Session, b.Session) })
	leased := map[uint64][][]*tensor.Storage{}
	leases := map[uint64]int{}
	s.Models.Held(func(holder uint64, n int, storages [][]*tensor.Storage) { leases[holder], leased[holder] = n, storages })
	each := min(listedReferences, max(listedReferencesAll/len(list), 1))
	for i := range list {
		session := &list[i]
		session.Leases = uint64(leases[session.Session])
		storages := leased[session.Session]
		if h := have.sessions[session.Session]; h != nil {
			session.References, session.Objects = largestReferences(h.largest, each), h.refs
			storages = append(storages, h.storages...)
		}
		session.Bytes = have.mapped(storages)
	}
	return list
}
