package endpoint

import (
	"cmp"
	"context"
	"maps"
	"os"
	"slices"

	"github.com/sharedtensor/sharedtensor/wire"
)

func doServerInfo(_ context.Context, r request) (reply, error) {
	return reply{body: r.session.server.describe()}, nil
}

// describe is what the server tells about itself.
func (s *Server) describe() wire.ServerInfo {
	sessions := s.describeSessions()
	return wire.ServerInfo{
		Server: s.id, Version: Version(), Label: s.opts.Label, Socket: s.opts.Socket, PID: int32(os.Getpid()), ParentPID: int32(os.Getppid()),
		StartedAt: s.started.UnixNano(), Ready: s.serving.Load() && !s.isClosing(), Devices: s.devices.describe(),
		Stats: s.stats(sessions), Endpoints: s.describeEndpoints(), Sessions: sessions,
	}
}

// stats sums up what the parts of the server count.
func (s *Server) stats(sessions []wire.SessionInfo) wire.ServerStats {
	results, tasks, books := s.results.Stats(), s.tasks.Stats(), s.books.Stats()
	out := wire.ServerStats{
		Requests: s.requests.Load(), Errors: s.failures.Load(),
		CacheHits: results.Hits, CacheMisses: results.Misses, CacheJoins: results.Joins, CacheInvalidations: results.Invalidations,
		CacheEntries: uint64(results.Entries), CacheBytes: uint64(results.Bytes), Inflight: uint64(results.Builds),
		Objects: uint64(s.objects.count()), TaskSubmissions: tasks.Submitted,
		Tasks: uint64(tasks.Pending + tasks.Running + tasks.Kept), TasksRunning: uint64(tasks.Running),
		Models: uint64(books.Names), Versions: uint64(books.Versions), Leases: uint64(books.Leases), Watchers: uint64(books.Watchers),
		BytesOwned: uint64(books.Bytes), Clients: uint64(len(sessions)),
	}
	for _, session := range sessions {
		out.BytesMapped += session.Bytes
	}
	return out
}

func (s *Server) describeEndpoints() []wire.EndpointStats {
	var list []wire.EndpointStats
	for _, d := range s.registry.list() {
		q := d.latency.quantiles(0.5, 0.9, 0.99)
		list = append(list, wire.EndpointStats{
			Name: d.name, Runs: d.latency.count.Load(), Errors: d.latency.failed.Load(), P50: int64(q[0]), P90: int64(q[1]), P99: int64(q[2]),
		})
	}
	return list
}

// describeSessions lists the clients and what they hold, the oldest first.
func (s *Server) describeSessions() []wire.SessionInfo {
	s.mu.Lock()
	list := make([]wire.SessionInfo, 0, len(s.sessions))
	for _, ses := range s.sessions {
		list = append(list, ses.describe())
	}
	s.mu.Unlock()
	slices.SortFunc(list, func(a, b wire.SessionInfo) int { return cmp.Compare(a.Session, b.Session) })
	objects := s.objects.bySession()
	held := map[uint64]int{}
	for i := range list {
		held[list[i].Session] = i
		list[i].Objects = uint64(objects[list[i].Session])
	}
	for _, h := range s.books.Holdings() {
		if i, ok := held[h.ID]; ok {
			list[i].Leases, list[i].Bytes = uint64(len(h.Leases)), uint64(h.Bytes)
		}
	}
	return list
}

// describe is what is known of a session without its leases.
func (ses *session) describe() wire.SessionInfo {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	peer := ses.conn.Peer()
	return wire.SessionInfo{
		Session: ses.id, PID: peer.PID, UID: peer.UID, Label: ses.label, Since: ses.since.UnixNano(), Requests: uint64(len(ses.running)),
	}
}

// count is how many objects there are.
func (o *objects) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.byID)
}

// bySession is how many references each session has.
func (o *objects) bySession() map[uint64]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.held)
}
