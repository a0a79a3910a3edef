package endpoint

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/server"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// limitRow is one limit. The texts stand in the table of PROTOCOL.md as they are.
type limitRow struct {
	name status.Limit
	// what is limited; one and all are the defaults for one client and for all together; beyond is what happens there;
	// test is what shows it.
	what, one, all, beyond, test string
	// use is what is in use, and the bounds in force.
	use func(s *Server, sessions []*session.Session) message.LimitUse
}

// errorLimit is what most refusals are.
const errorLimit = "error 20"

// limitRows are all of them, in the order of the table. It is filled by init, for the functions lead back to it.
var limitRows []limitRow

func init() {
	limitRows = []limitRow{
		{status.LimitClients, "connections", "", "16,384, or 1/8 of RLIMIT_NOFILE", "error 20 in answer to the hello", "TestLimitsClients", useClients},
		{status.LimitSubscriptions, "leases and watched names", "65,536", "", errorLimit, "TestLimitsSubscriptions", useSubscriptions},
		{status.LimitObjects, "references to managed objects", "65,536", "", errorLimit, "TestLimitsObjects", useObjects},
		{status.LimitObjectBytes, "bytes of managed objects, and of results until they are sent", "3/4 of the memory of the devices", "the memory of the devices", errorLimit, "TestLimitsResultBytes", useObjectBytes},
		{status.LimitReleases, "objects of one `release object`", "4,096", "", errorLimit, "TestLimitsReleases", fixedUse(message.MaxReleases)},
		{status.LimitTasks, "tasks that have not ended", "3/4 of the capacity", "1,000", "error 5, type `capacity`", "TestLimitsTasks", useTasks},
		{status.LimitVersions, "versions", "1,024", "8,192", errorLimit, "TestLimitsPublish", useVersions},
		{status.LimitStorages, "storages", "4,096", "16,384, or 3/16 of RLIMIT_NOFILE", errorLimit, "TestLimitsPublishTotal", useStorages},
		{status.LimitStorageBytes, "bytes of storages", "the memory of the devices", "the memory of the devices", errorLimit, "TestLimitsSparsePublication", useStorageBytes},
		{status.LimitManifestBytes, "bytes of manifests", "256 MiB", "512 MiB, or 1/16 of the memory", errorLimit, "TestLimitsManifests", useManifestBytes},
		{status.LimitSourceSize, "bytes of the `source` of a version", "1,024", "", "it is cut", "TestHostileTexts", fixedUse(status.MaxSourceBytes)},
		{status.LimitLabelSize, "bytes of a label", "64", "", "it is cut", "TestHostileTexts", fixedUse(status.MaxLabelBytes)},
		{status.LimitRequests, "requests in flight", "16,384", "", errorLimit, "TestLimitsRequests", useRequests},
		{status.LimitRequestBytes, "bytes of requests in flight", "256 MiB", "1/8 of the memory, 256 MiB to 4 GiB", errorLimit, "TestLimitsRequestBytesTotal", useRequestBytes},
		{status.LimitAnswerBytes, "bytes of answers not yet read", "256 MiB", "1/8 of the memory, 256 MiB to 4 GiB", errorLimit, "TestLimitsAnswers", useAnswerBytes},
		{status.LimitDescriptors, "descriptors in flight", "twice what is free", "65,536, or 3/8 of RLIMIT_NOFILE", errorLimit, "TestLimitsDescriptors", useDescriptors},
		{status.LimitRequestTime, "seconds of one request", "as long as the client waits", "", "error 24", "TestLimitsRequestTime", useRequestTime},
		{status.LimitResultBytes, "bytes of cached results", "", "1/4 of the memory", "results that nobody holds are dropped", "TestLimitsCachedResults", useResultBytes},
		{status.LimitKeptStorages, "storages of arguments kept mapped", "64", "4,096, or 1/16 of RLIMIT_NOFILE", "the client sends the memory again", "TestKeptMemoryLimit", useKeptStorages},
		{status.LimitKeptBytes, "bytes of those", "1/16 of the memory", "", "the client sends the memory again", "TestKeptMemoryLimit", useKeptBytes},
		{status.LimitSlabs, "slabs of results that are used again", "64", "4,096, or 1/16 of RLIMIT_NOFILE", "the memory of a result is used once", "TestSlabLimit", useSlabs},
		{status.LimitSlabBytes, "bytes of those", "1/16 of the memory", "1/4 of the memory", "the memory of a result is used once", "TestSlabLimit", useSlabBytes},
		{status.LimitOffers, "endpoints that are offered", "256", "4,096", errorLimit, "TestOfferLimits", useOffers},
		{status.LimitOfferBytes, "bytes of their descriptions", "1 MiB", "16 MiB", errorLimit, "TestOfferLimits", useOfferBytes},
		{status.LimitWorkerCalls, "calls that a worker has not answered", "1,024", "", "calls wait; error 20 if all are overdue", "TestOfferCallLimit", useWorkerCalls},
		{status.LimitWorkerTime, "seconds of a call to a worker", "as long as the caller waits", "", "error 24", "TestOfferTimeLimit", useWorkerTime},
		{status.LimitRingBytes, "bytes of rings", "68 KiB", "1/256 of the memory, 16 MiB to 256 MiB", "its frames go over the socket", "TestRingLimit", useRingBytes},
		{status.LimitTaskBytes, "bytes of results that tasks keep", "", "1/4 of the memory", "the oldest results are dropped", "TestLimitsCachedResults", useTaskBytes},
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

// describeLimits is what is used of each limit.
func describeLimits(s *Server) []message.LimitUse {
	sessions := s.sessions.Clients()
	list := make([]message.LimitUse, 0, len(limitRows))
	for _, row := range limitRows {
		use := row.use(s, sessions)
		use.Name = string(row.name)
		use.Refused += s.totals.Refusals.Of(row.name)
		list = append(list, use)
	}
	return list
}

// mostOf is the largest of what the sessions have, and their sum.
func mostOf(sessions []*session.Session, of func(*session.Session) int64) (most, sum int64) {
	for _, ses := range sessions {
		n := of(ses)
		most, sum = max(most, n), sum+n
	}
	return most, sum
}

func fixedUse(limit int64) func(*Server, []*session.Session) message.LimitUse {
	return func(*Server, []*session.Session) message.LimitUse { return message.LimitUse{Client: limit} }
}

func useClients(s *Server, sessions []*session.Session) message.LimitUse {
	return message.LimitUse{All: int64(s.opts.Limits.Clients), Used: int64(len(sessions))}
}

func useSubscriptions(s *Server, sessions []*session.Session) message.LimitUse {
	most, sum := mostOf(sessions, func(ses *session.Session) int64 {
		return int64(ses.Events.Weight())
	})
	return message.LimitUse{Client: int64(s.opts.Limits.Subscriptions), Most: most, Used: sum}
}

func useObjects(s *Server, sessions []*session.Session) message.LimitUse {
	most, sum := mostOf(sessions, func(ses *session.Session) int64 { return int64(s.engine.Objects.HeldBy(ses.ID)) })
	return message.LimitUse{Client: int64(s.opts.Limits.Objects), Most: most, Used: sum}
}

func useTasks(s *Server, _ []*session.Session) message.LimitUse {
	stats := s.engine.Tasks.Stats()
	return message.LimitUse{Client: int64(s.opts.Limits.Tasks), All: int64(s.opts.Tasks.capacity()), Used: int64(stats.Pending + stats.Running)}
}

// usePublished is a limit of what clients have published.
func usePublished(s *Server, of func(server.Usage) int64, bound func(PublishLimits) int64) message.LimitUse {
	total, most := s.models.Use()
	return message.LimitUse{Client: bound(s.opts.Limits.Publish), All: bound(s.opts.Limits.PublishTotal), Used: of(total), Most: of(most)}
}

func useVersions(s *Server, _ []*session.Session) message.LimitUse {
	return usePublished(s, func(u server.Usage) int64 { return int64(u.Versions) }, func(l PublishLimits) int64 { return int64(l.Versions) })
}

func useStorages(s *Server, _ []*session.Session) message.LimitUse {
	return usePublished(s, func(u server.Usage) int64 { return int64(u.Storages) }, func(l PublishLimits) int64 { return int64(l.Storages) })
}

func useStorageBytes(s *Server, _ []*session.Session) message.LimitUse {
	return usePublished(s, func(u server.Usage) int64 { return u.Bytes }, func(l PublishLimits) int64 { return l.Bytes })
}

func useManifestBytes(s *Server, _ []*session.Session) message.LimitUse {
	return usePublished(s, func(u server.Usage) int64 { return u.Manifests }, func(l PublishLimits) int64 { return l.ManifestBytes })
}

func useRequests(s *Server, sessions []*session.Session) message.LimitUse {
	most, sum := mostOf(sessions, func(ses *session.Session) int64 { return int64(ses.InFlight.Count()) })
	return message.LimitUse{Client: int64(s.opts.Limits.Requests), Most: most, Used: sum}
}

func useRequestBytes(s *Server, sessions []*session.Session) message.LimitUse {
	most, _ := mostOf(sessions, func(ses *session.Session) int64 { return ses.InFlight.Bytes() })
	b := s.totals.Bodies.Use()
	return message.LimitUse{Client: s.opts.Limits.RequestBytes, All: b.Limit, Most: most, Used: b.Used, Refused: b.Refused}
}

func useAnswerBytes(s *Server, _ []*session.Session) message.LimitUse {
	b := s.totals.Answers.Use()
	return message.LimitUse{Client: b.Each, All: b.Limit, Used: b.Used, Refused: b.Refused}
}

func useDescriptors(s *Server, _ []*session.Session) message.LimitUse {
	b := s.totals.Files.Use()
	return message.LimitUse{All: b.Limit, Used: b.Used, Refused: b.Refused}
}

func useRequestTime(s *Server, _ []*session.Session) message.LimitUse {
	return message.LimitUse{Client: int64(s.opts.Limits.RequestTime / time.Second)}
}

func useResultBytes(s *Server, _ []*session.Session) message.LimitUse {
	stats := s.engine.Results.Stats()
	return message.LimitUse{All: max(s.opts.Results.Bytes, 0), Used: stats.Bytes, Refused: stats.Evictions, Reason: s.budgets.results}
}

func useTaskBytes(s *Server, _ []*session.Session) message.LimitUse {
	return message.LimitUse{All: max(s.opts.Tasks.Bytes, 0), Used: s.engine.Tasks.Stats().Bytes, Reason: s.budgets.tasks}
}

func useKeptStorages(s *Server, sessions []*session.Session) message.LimitUse {
	most, _ := mostOf(sessions, func(ses *session.Session) int64 { return server.UseOf(ses).Kept })
	used, _ := s.totals.Kept.Used()
	return message.LimitUse{Client: transfer.MaxMappings, All: s.totals.Kept.Most, Most: most, Used: used}
}

func useKeptBytes(s *Server, sessions []*session.Session) message.LimitUse {
	most, sum := mostOf(sessions, func(ses *session.Session) int64 { return server.UseOf(ses).KeptBytes })
	return message.LimitUse{Client: max(s.opts.Limits.KeptBytes, 0), Most: most, Used: sum}
}

func useSlabs(s *Server, sessions []*session.Session) message.LimitUse {
	most, _ := mostOf(sessions, func(ses *session.Session) int64 { return server.UseOf(ses).Slabs })
	used, _ := s.totals.Slabs.Used()
	return message.LimitUse{Client: transfer.MaxMappings, All: s.totals.Slabs.Most, Most: most, Used: used, Refused: s.totals.Slabs.Refused.Load()}
}

func useSlabBytes(s *Server, sessions []*session.Session) message.LimitUse {
	most, _ := mostOf(sessions, func(ses *session.Session) int64 { return server.UseOf(ses).SlabBytes })
	_, used := s.totals.Slabs.Used()
	return message.LimitUse{Client: max(s.opts.Limits.SlabBytes, 0), All: s.totals.Slabs.MostBytes, Most: most, Used: used}
}

func useOffers(s *Server, sessions []*session.Session) message.LimitUse {
	most, sum := mostOf(sessions, func(ses *session.Session) int64 { return server.UseOf(ses).Offers })
	return message.LimitUse{Client: int64(s.opts.Limits.Offers), All: int64(s.opts.Limits.OffersTotal), Most: most, Used: sum}
}

func useOfferBytes(s *Server, sessions []*session.Session) message.LimitUse {
	most, sum := mostOf(sessions, func(ses *session.Session) int64 { return server.UseOf(ses).OfferBytes })
	return message.LimitUse{Client: s.opts.Limits.OfferBytes, All: s.opts.Limits.OfferBytesTotal, Most: most, Used: sum}
}

func useWorkerCalls(s *Server, sessions []*session.Session) message.LimitUse {
	most, sum := mostOf(sessions, func(ses *session.Session) int64 { return server.UseOf(ses).WorkerCalls })
	return message.LimitUse{Client: int64(s.opts.Limits.WorkerCalls), Most: most, Used: sum}
}

func useWorkerTime(s *Server, _ []*session.Session) message.LimitUse {
	return message.LimitUse{Client: int64(s.opts.Limits.WorkerTime / time.Second)}
}

func useRingBytes(s *Server, _ []*session.Session) message.LimitUse {
	b, one := s.totals.Rings.Use(), int64(0)
	if ring := s.opts.Limits.Wire.WithDefaults().Ring; ring > 0 {
		one = 4096 + 2*int64(ring) // PROTOCOL.md, Rings: the indices and two rings
	}
	return message.LimitUse{Client: one, All: b.Limit, Most: min(one, b.Used), Used: b.Used, Refused: b.Refused}
}

// capacity is how many tasks there may be.
func (o *TaskOptions) capacity() int { return cmp.Or(max(o.Capacity, 0), task.DefaultCapacity) }

func useObjectBytes(s *Server, _ []*session.Session) message.LimitUse {
	one, all, used, most := s.engine.Memory.Use()
	return message.LimitUse{Client: one, All: all, Used: used, Most: most}
}

// limitNames are the limits, in the order of the table.
func limitNames() []status.Limit {
	names := make([]status.Limit, len(limitRows))
	for i, row := range limitRows {
		names[i] = row.name
	}
	return names
}
