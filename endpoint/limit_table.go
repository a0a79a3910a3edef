package endpoint

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// limitName names a limit: in server-infos, as the label of metrics, and in PROTOCOL.md.
type limitName string

// The limits on what clients can make a server hold or do.
const (
	limitClients       limitName = "clients"
	limitSubscriptions limitName = "leases"
	limitObjects       limitName = "references"
	limitObjectBytes   limitName = "object_bytes"
	limitReleases      limitName = "releases"
	limitTasks         limitName = "tasks"
	limitVersions      limitName = "versions"
	limitStorages      limitName = "storages"
	limitStorageBytes  limitName = "storage_bytes"
	limitManifestBytes limitName = "manifest_bytes"
	limitSource        limitName = "source_bytes"
	limitLabel         limitName = "label_bytes"
	limitRequests      limitName = "requests"
	limitRequestBytes  limitName = "request_bytes"
	limitAnswerBytes   limitName = "answer_bytes"
	limitDescriptors   limitName = "descriptors"
	limitRequestTime   limitName = "request_seconds"
	limitResultBytes   limitName = "result_bytes"
	limitTaskBytes     limitName = "task_result_bytes"
	limitKeptStorages  limitName = "kept_storages"
	limitKeptBytes     limitName = "kept_bytes"
)

// limitRow is one limit. The texts stand in the table of PROTOCOL.md as they are.
type limitRow struct {
	name limitName
	// what is limited; one and all are the defaults for one client and for all together; beyond is what happens there; test is what shows
	// it.
	what, one, all, beyond, test string
	// use is what is in use, and the bounds in force.
	use func(s *Server, sessions []*session) message.LimitUse
}

// errorLimit is what most refusals are.
const errorLimit = "error 20"

// limitRows are all of them, in the order of the table. It is filled by init, for the functions lead back to it.
var limitRows []limitRow

func init() {
	limitRows = []limitRow{
		{limitClients, "connections", "", "16,384, or 1/8 of RLIMIT_NOFILE", "error 20 in answer to the hello", "TestTooManyClientsAreToldSo", useClients},
		{limitSubscriptions, "leases and watched names", "65,536", "", errorLimit, "TestSubscriptionsAreLimited", useSubscriptions},
		{limitObjects, "references to managed objects", "65,536", "", errorLimit, "TestObjectsOfOneClientAreLimited", useObjects},
		{limitObjectBytes, "bytes of managed objects, and of results until they are sent", "3/4 of the memory of the devices", "the memory of the devices", errorLimit, "TestMemoryOfResultsIsBounded", useObjectBytes},
		{limitReleases, "objects of one `release object`", "4,096", "", errorLimit, "TestHowManyObjectsARequestReleasesIsBounded", fixedUse(message.MaxReleases)},
		{limitTasks, "tasks that have not ended", "3/4 of the capacity", "1,000", "error 5, type `capacity`", "TestTasksOfOneClientAreLimited", useTasks},
		{limitVersions, "versions", "1,024", "8,192", errorLimit, "TestWhatOneClientPublishesIsBounded", useVersions},
		{limitStorages, "storages", "4,096", "16,384, or 3/16 of RLIMIT_NOFILE", errorLimit, "TestWhatAllClientsPublishIsBounded", useStorages},
		{limitStorageBytes, "bytes of storages", "the memory of the devices", "the memory of the devices", errorLimit, "TestSparsePublicationIsBounded", useStorageBytes},
		{limitManifestBytes, "bytes of manifests", "256 MiB", "512 MiB, or 1/16 of the memory", errorLimit, "TestManifestsAreCharged", useManifestBytes},
		{limitSource, "bytes of the `source` of a version", "1,024", "", "it is cut", "TestTextsOfPeersAreCutAndCopied", fixedUse(sourceBytes)},
		{limitLabel, "bytes of a label", "64", "", "it is cut", "TestTextsOfPeersAreCutAndCopied", fixedUse(labelBytes)},
		{limitRequests, "requests in flight", "16,384", "", errorLimit, "TestHowManyRequestsIsBounded", useRequests},
		{limitRequestBytes, "bytes of requests in flight", "256 MiB", "1/8 of the memory, 256 MiB to 4 GiB", errorLimit, "TestBytesOfRequestsOfAllClientsAreBounded", useRequestBytes},
		{limitAnswerBytes, "bytes of answers not yet read", "256 MiB", "1/8 of the memory, 256 MiB to 4 GiB", errorLimit, "TestAnswersThatNobodyReadsAreBounded", useAnswerBytes},
		{limitDescriptors, "descriptors in flight", "twice what is free", "65,536, or 3/8 of RLIMIT_NOFILE", errorLimit, "TestDescriptorsInFlightLeaveRoomForOthers", useDescriptors},
		{limitRequestTime, "seconds of one request", "as long as the client waits", "", "error 24", "TestTimeOfARequestIsBounded", useRequestTime},
		{limitResultBytes, "bytes of cached results", "", "1/4 of the memory", "results that nobody holds are dropped", "TestCachedResultsHaveABudget", useResultBytes},
		{limitKeptStorages, "storages of arguments kept mapped", "64", "4,096, or 1/16 of RLIMIT_NOFILE", "the client sends the memory again", "TestKeptMemoryIsBounded", useKeptStorages},
		{limitKeptBytes, "bytes of those", "1/16 of the memory", "", "the client sends the memory again", "TestKeptMemoryIsBounded", useKeptBytes},
		{limitTaskBytes, "bytes of results that tasks keep", "", "1/4 of the memory", "the oldest results are dropped", "TestCachedResultsHaveABudget", useTaskBytes},
	}
}

// limitTable is the table as it stands in PROTOCOL.md.
func limitTable() string {
	var b strings.Builder
	b.WriteString("| limit | of one client | of all | beyond it | `limit` | test |\n|---|---|---|---|---|---|\n")
	for _, r := range limitRows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | `%s` | `%s` |\n", r.what, r.one, r.all, r.beyond, r.name, r.test)
	}
	return b.String()
}

// refusals count what was refused, by limit.
type refusals struct{ by map[limitName]*atomic.Uint64 }

func newRefusals() refusals {
	r := refusals{by: map[limitName]*atomic.Uint64{}}
	for _, row := range limitRows {
		r.by[row.name] = new(atomic.Uint64)
	}
	return r
}

// count notes an error that is answered, if it is that of a limit.
func (r refusals) count(err error) {
	var o *overLimit
	switch {
	case errors.As(err, &o):
		r.add(o.limit)
	case errors.Is(err, task.ErrCapacity):
		r.add(limitTasks)
	}
}

func (r refusals) add(name limitName) {
	if n := r.by[name]; n != nil {
		n.Add(1)
	}
}

// describeLimits is what is used of each limit.
func (s *Server) describeLimits() []message.LimitUse {
	s.mu.Lock()
	sessions := slices.Collect(maps.Values(s.sessions))
	s.mu.Unlock()
	sessions = slices.DeleteFunc(sessions, func(ses *session) bool { return ses.own })
	list := make([]message.LimitUse, 0, len(limitRows))
	for _, row := range limitRows {
		use := row.use(s, sessions)
		use.Name = string(row.name)
		use.Refused += s.refusals.by[row.name].Load()
		list = append(list, use)
	}
	return list
}

// mostOf is the largest of what the sessions have, and their sum.
func mostOf(sessions []*session, of func(*session) int64) (most, sum int64) {
	for _, ses := range sessions {
		n := of(ses)
		most, sum = max(most, n), sum+n
	}
	return most, sum
}

func fixedUse(limit int64) func(*Server, []*session) message.LimitUse {
	return func(*Server, []*session) message.LimitUse { return message.LimitUse{Client: limit} }
}

func useClients(s *Server, sessions []*session) message.LimitUse {
	return message.LimitUse{All: int64(s.opts.Limits.Clients), Used: int64(len(sessions))}
}

func useSubscriptions(s *Server, sessions []*session) message.LimitUse {
	most, sum := mostOf(sessions, func(ses *session) int64 {
		ses.events.mu.Lock()
		defer ses.events.mu.Unlock()
		return int64(ses.events.weight)
	})
	return message.LimitUse{Client: int64(s.opts.Limits.Subscriptions), Most: most, Used: sum}
}

func useObjects(s *Server, sessions []*session) message.LimitUse {
	most, sum := mostOf(sessions, func(ses *session) int64 { return int64(s.objects.heldBy(ses.id)) })
	return message.LimitUse{Client: int64(s.opts.Limits.Objects), Most: most, Used: sum}
}

func useTasks(s *Server, _ []*session) message.LimitUse {
	stats := s.tasks.Stats()
	return message.LimitUse{Client: int64(s.opts.Limits.Tasks), All: int64(s.opts.Tasks.capacity()), Used: int64(stats.Pending + stats.Running)}
}

// usePublished is a limit of what clients have published.
func (s *Server) usePublished(of func(usage) int64, bound func(PublishLimits) int64) message.LimitUse {
	s.quotas.mu.Lock()
	defer s.quotas.mu.Unlock()
	out := message.LimitUse{Client: bound(s.opts.Limits.Publish), All: bound(s.opts.Limits.PublishTotal), Used: of(s.quotas.total)}
	for _, u := range s.quotas.by {
		out.Most = max(out.Most, of(*u))
	}
	return out
}

func useVersions(s *Server, _ []*session) message.LimitUse {
	return s.usePublished(func(u usage) int64 { return int64(u.versions) }, func(l PublishLimits) int64 { return int64(l.Versions) })
}

func useStorages(s *Server, _ []*session) message.LimitUse {
	return s.usePublished(func(u usage) int64 { return int64(u.storages) }, func(l PublishLimits) int64 { return int64(l.Storages) })
}

func useStorageBytes(s *Server, _ []*session) message.LimitUse {
	return s.usePublished(func(u usage) int64 { return u.bytes }, func(l PublishLimits) int64 { return l.Bytes })
}

func useManifestBytes(s *Server, _ []*session) message.LimitUse {
	return s.usePublished(func(u usage) int64 { return u.manifests }, func(l PublishLimits) int64 { return l.ManifestBytes })
}

func useRequests(s *Server, sessions []*session) message.LimitUse {
	most, sum := mostOf(sessions, func(ses *session) int64 {
		ses.mu.Lock()
		defer ses.mu.Unlock()
		return int64(len(ses.running))
	})
	return message.LimitUse{Client: int64(s.opts.Limits.Requests), Most: most, Used: sum}
}

func useRequestBytes(s *Server, sessions []*session) message.LimitUse {
	most, _ := mostOf(sessions, func(ses *session) int64 { return ses.carried.Load() })
	b := s.bodies.Use()
	return message.LimitUse{Client: s.opts.Limits.RequestBytes, All: b.Limit, Most: most, Used: b.Used, Refused: b.Refused}
}

func useAnswerBytes(s *Server, _ []*session) message.LimitUse {
	b := s.answers.Use()
	return message.LimitUse{Client: b.Each, All: b.Limit, Used: b.Used, Refused: b.Refused}
}

func useDescriptors(s *Server, _ []*session) message.LimitUse {
	b := s.files.Use()
	return message.LimitUse{All: b.Limit, Used: b.Used, Refused: b.Refused}
}

func useRequestTime(s *Server, _ []*session) message.LimitUse {
	return message.LimitUse{Client: int64(s.opts.Limits.RequestTime / time.Second)}
}

func useResultBytes(s *Server, _ []*session) message.LimitUse {
	stats := s.results.Stats()
	return message.LimitUse{All: max(s.opts.Results.Bytes, 0), Used: stats.Bytes, Refused: stats.Evictions, Reason: s.resultsWhy}
}

func useTaskBytes(s *Server, _ []*session) message.LimitUse {
	return message.LimitUse{All: max(s.opts.Tasks.Bytes, 0), Used: s.tasks.Stats().Bytes, Reason: s.tasksWhy}
}

func useKeptStorages(s *Server, sessions []*session) message.LimitUse {
	most, _ := mostOf(sessions, func(ses *session) int64 { n, _ := ses.kept.Use(); return int64(n) })
	return message.LimitUse{Client: transfer.KeptStorages, All: s.kept.Most, Most: most, Used: s.kept.Used()}
}

func useKeptBytes(s *Server, sessions []*session) message.LimitUse {
	most, sum := mostOf(sessions, func(ses *session) int64 { _, bytes := ses.kept.Use(); return bytes })
	return message.LimitUse{Client: max(s.opts.Limits.KeptBytes, 0), Most: most, Used: sum}
}

// LimitUse is one limit on what clients can make a server hold or do, with what is in use of it. PROTOCOL.md has the table.
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

// limits writes what is known of limits as metrics.
func (m *metrics) limits(list []LimitUse) {
	each := func(name, kind, help string, value func(LimitUse) (string, bool)) {
		m.family(name, kind, help)
		for _, l := range list {
			if text, there := value(l); there {
				m.sample(name, text, "limit", l.Name)
			}
		}
	}
	bound := func(n int64) (string, bool) { return count(uint64(max(n, 0))), n > 0 }
	each("limit_client", "gauge", "What one client may have, by limit.", func(l LimitUse) (string, bool) { return bound(l.Client) })
	each("limit", "gauge", "What all clients may have together, by limit.", func(l LimitUse) (string, bool) { return bound(l.All) })
	each("limit_client_used", "gauge", "The most that one client has, by limit.",
		func(l LimitUse) (string, bool) { return count(uint64(max(l.Most, 0))), l.Client > 0 })
	each("limit_used", "gauge", "What all clients have together, by limit.",
		func(l LimitUse) (string, bool) { return count(uint64(max(l.Used, 0))), true })
	each("limit_refused_total", "counter", "What was refused, dropped or cut off, by limit.",
		func(l LimitUse) (string, bool) { return count(l.Refused), true })
}

// capacity is how many tasks there may be.
func (o *TaskOptions) capacity() int { return cmp.Or(max(o.Capacity, 0), task.DefaultCapacity) }
