package server

import (
	"cmp"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/internal/logs"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// limitRow describes one limit. PROTOCOL.md contains the texts.
type limitRow struct {
	name status.Limit
	// what names the limited resource, one and all the defaults for one client and for all, beyond the consequence.
	what, one, all, beyond string
	// use returns the bounds in force and what is in use.
	use func(s *Server, clients []clientUse) message.LimitUse
}

// errorLimit is the usual consequence.
const errorLimit = "error 20"

// limitTable returns all limits in the order of PROTOCOL.md.
func limitTable() []limitRow {
	return []limitRow{
		{status.LimitClients, "connections", "", "16,384, or 1/8 of RLIMIT_NOFILE", "error 20 in answer to the hello", func(s *Server, clients []clientUse) message.LimitUse {
			return message.LimitUse{All: int64(s.Limits.Clients), Used: int64(len(clients))}
		}},
		{status.LimitSubscriptions, "leases and watched names", "65,536", "", errorLimit, func(s *Server, clients []clientUse) message.LimitUse {
			return sumUse(clients, s.Limits.Subscriptions, func(c *clientUse) int { return c.subscriptions })
		}},
		{status.LimitObjects, "references to managed objects", "65,536", "", errorLimit, func(s *Server, clients []clientUse) message.LimitUse {
			return sumUse(clients, s.Limits.Objects, func(c *clientUse) int { return c.objects })
		}},
		{status.LimitObjectBytes, "bytes of managed objects, and of results until they are sent", "3/4 of the memory of the devices", "the memory of the devices", errorLimit, useObjectBytes},
		{status.LimitReleases, "objects of one `release object`", "4,096", "", errorLimit, fixedUse(message.MaxReleases)},
		{status.LimitTasks, "tasks that have not ended", "3/4 of the capacity", "1,000", "error 5, type `capacity`", useTasks},
		{status.LimitVersions, "versions", "1,024", "8,192", errorLimit, publishedUse(func(l status.PublishLimits, u Usage) (int64, int64) { return int64(l.Versions), int64(u.Versions) })},
		{status.LimitStorages, "storages", "4,096", "16,384, or 3/16 of RLIMIT_NOFILE", errorLimit, publishedUse(func(l status.PublishLimits, u Usage) (int64, int64) { return int64(l.Storages), int64(u.Storages) })},
		{status.LimitStorageBytes, "bytes of storages", "the memory of the devices", "the memory of the devices", errorLimit, publishedUse(func(l status.PublishLimits, u Usage) (int64, int64) { return l.Bytes, u.Bytes })},
		{status.LimitManifestBytes, "bytes of manifests", "256 MiB", "512 MiB, or 1/16 of the memory", errorLimit, publishedUse(func(l status.PublishLimits, u Usage) (int64, int64) { return l.ManifestBytes, u.Manifests })},
		{status.LimitPlacementBytes, "bytes of placements", "the budget of the device", "the budgets of the devices", errorLimit, usePlacementBytes},
		{status.LimitParts, "parts of a version", "1,024", "", "error 18, type `part`", fixedUse(message.MaxParts)},
		{status.LimitPartTime, "seconds that a version waits for its parts", "300", "", "error 24, type `incomplete`", func(s *Server, _ []clientUse) message.LimitUse {
			return message.LimitUse{Client: int64(s.Limits.PartTime / time.Second)}
		}},
		{status.LimitSourceSize, "bytes of the `source` of a version", "1,024", "", "it is cut", fixedUse(status.MaxSourceBytes)},
		{status.LimitLabelSize, "bytes of a label", "64", "", "it is cut", fixedUse(status.MaxLabelBytes)},
		{status.LimitRequests, "requests in flight", "16,384", "", errorLimit, func(s *Server, clients []clientUse) message.LimitUse {
			return sumUse(clients, s.Limits.Requests, func(c *clientUse) int { return c.requests })
		}},
		{status.LimitRequestBytes, "bytes of requests in flight", "256 MiB", "1/8 of the memory, 256 MiB to 4 GiB", errorLimit, func(s *Server, clients []clientUse) message.LimitUse {
			each := sumUse(clients, s.Limits.RequestBytes, func(c *clientUse) int64 { return c.requestBytes })
			all := budgetUse(s.Totals.Bodies)
			all.Client, all.Most = each.Client, each.Most
			return all
		}},
		{status.LimitAnswerBytes, "bytes of answers not yet read", "256 MiB", "1/8 of the memory, 256 MiB to 4 GiB", errorLimit, func(s *Server, _ []clientUse) message.LimitUse { return budgetUse(s.Totals.Answers) }},
		{status.LimitDescriptors, "descriptors in flight", "twice what is free", "65,536, or 3/8 of RLIMIT_NOFILE", errorLimit, func(s *Server, _ []clientUse) message.LimitUse { return budgetUse(s.Totals.Files) }},
		{status.LimitRequestTime, "seconds of one request", "as long as the client waits", "", "error 24", func(s *Server, _ []clientUse) message.LimitUse {
			return message.LimitUse{Client: int64(s.Limits.RequestTime / time.Second)}
		}},
		{status.LimitResultBytes, "bytes of cached results", "", "1/4 of the memory", "results that nobody holds are dropped", func(s *Server, _ []clientUse) message.LimitUse {
			stats := s.Engine.Results.Stats()
			return message.LimitUse{All: max(s.Results.Bytes, 0), Used: stats.Bytes, Refused: stats.Evictions, Reason: s.origin.results}
		}},
		{status.LimitKept, "mappings kept for arguments, and for results", "64 of each", "4,096, or 1/16 of RLIMIT_NOFILE", "the memory is sent again, or used once", func(s *Server, clients []clientUse) message.LimitUse {
			use := sumUse(clients, transfer.MaxMappings, func(c *clientUse) int { return c.kept })
			use.All, use.Refused = s.Totals.Kept.Most, s.Totals.Kept.Refused.Load()
			return use
		}},
		{status.LimitKeptBytes, "bytes of those", "1/16 of the memory", "1/4 of the memory", "the memory is sent again, or used once", func(s *Server, clients []clientUse) message.LimitUse {
			use := sumUse(clients, max(s.Limits.KeptBytes, 0), func(c *clientUse) int64 { return c.keptBytes })
			use.All = s.Totals.Kept.MostBytes
			return use
		}},
		{status.LimitOffers, "endpoints that are offered", "256", "4,096", errorLimit, func(s *Server, clients []clientUse) message.LimitUse {
			use := sumUse(clients, s.Limits.Offers, func(c *clientUse) int { return c.offers })
			use.All = int64(s.Limits.OffersTotal)
			return use
		}},
		{status.LimitOfferBytes, "bytes of their descriptions", "1 MiB", "16 MiB", errorLimit, func(s *Server, clients []clientUse) message.LimitUse {
			use := sumUse(clients, s.Limits.OfferBytes, func(c *clientUse) int64 { return c.offerBytes })
			use.All = s.Limits.OfferBytesTotal
			return use
		}},
		{status.LimitWorkerCalls, "calls that a worker has not answered", "1,024", "", "calls wait; error 20 if all are overdue", func(s *Server, clients []clientUse) message.LimitUse {
			return sumUse(clients, s.Limits.WorkerCalls, func(c *clientUse) int { return c.workerCalls })
		}},
		{status.LimitWorkerTime, "seconds of a call to a worker", "as long as the caller waits", "", "error 24", func(s *Server, _ []clientUse) message.LimitUse {
			return message.LimitUse{Client: int64(s.Limits.WorkerTime / time.Second)}
		}},
		{status.LimitRingBytes, "bytes of rings", "68 KiB", "1/256 of the memory, 16 MiB to 256 MiB", "its frames go over the socket", useRingBytes},
		{status.LimitTaskBytes, "bytes of results that tasks keep", "", "1/4 of the memory", "the oldest results are dropped", func(s *Server, _ []clientUse) message.LimitUse {
			return message.LimitUse{All: max(s.Tasks.Bytes, 0), Used: s.Engine.Tasks.Stats().Bytes, Reason: s.origin.tasks}
		}},
		{status.LimitLogLines, "lines of the log that are not written yet", "", "4,096, and 1 MiB", "the line is dropped", func(s *Server, _ []clientUse) (use message.LimitUse) {
			if s.LogLost != nil {
				use.All, use.Refused = logs.MaxLines, s.LogLost()
			}
			return use
		}},
		{status.LimitAuditLines, "lines of the audit log that cannot be written", "", "", "the change is not recorded, or is refused with error 6", func(s *Server, _ []clientUse) message.LimitUse {
			return message.LimitUse{Refused: s.audited.lost.Load()}
		}},
	}
}

// limitNames returns the names of all limits.
func limitNames() (names []status.Limit) {
	for _, row := range limitTable() {
		names = append(names, row.name)
	}
	return names
}

// limitUses returns what is used of each limit.
func (s *Server) limitUses() (list []message.LimitUse) {
	var clients []clientUse
	for _, ses := range s.Sessions.Clients() {
		clients = append(clients, useOf(ses))
	}
	for _, row := range limitTable() {
		use := row.use(s, clients)
		use.Name = string(row.name)
		use.Refused += s.Totals.Refusals.Of(row.name)
		list = append(list, use)
	}
	return list
}

// clientUse is the usage of one client, by limit.
type clientUse struct {
	subscriptions, objects, requests int
	requestBytes                     int64
	kept                             int // mappings of arguments and results
	keptBytes                        int64
	offers, workerCalls              int
	offerBytes                       int64
}

func useOf(ses *session.Session) clientUse {
	c := clientOf(ses)
	args, argBytes := c.kept.Use()
	results, resultBytes := c.slabs.Use()
	u := clientUse{
		subscriptions: ses.Events.Weight(), objects: c.server.Engine.Objects.HeldBy(ses.ID), requests: ses.InFlight.Count(), requestBytes: ses.InFlight.Bytes(),
		kept: args + results, keptBytes: argBytes + resultBytes,
	}
	if w := c.worker(); w != nil {
		u.offers, u.offerBytes = w.Offered()
		u.workerCalls = w.Running()
	}
	return u
}

// sumUse returns the use of a limit of each client: of all clients together, and of the one that uses most.
func sumUse[N int | int64](clients []clientUse, limit N, of func(*clientUse) N) message.LimitUse {
	use := message.LimitUse{Client: int64(limit)}
	for i := range clients {
		n := int64(of(&clients[i]))
		use.Used += n
		use.Most = max(use.Most, n)
	}
	return use
}

// budgetUse returns the use of a budget that all clients share.
func budgetUse(budget *session.Budget) message.LimitUse {
	b := budget.Use()
	return message.LimitUse{Client: b.Each, All: b.Limit, Used: b.Used, Refused: b.Refused}
}

func fixedUse(limit int64) func(*Server, []clientUse) message.LimitUse {
	return func(*Server, []clientUse) message.LimitUse { return message.LimitUse{Client: limit} }
}

// publishedUse returns the use of a limit on publications.
func publishedUse(of func(status.PublishLimits, Usage) (bound, used int64)) func(*Server, []clientUse) message.LimitUse {
	return func(s *Server, _ []clientUse) (use message.LimitUse) {
		total, most := s.Models.Use()
		use.Client, use.Most = of(s.Limits.Publish, most)
		use.All, use.Used = of(s.Limits.PublishTotal, total)
		return use
	}
}

func useObjectBytes(s *Server, _ []clientUse) message.LimitUse {
	one, all, used, most := s.Engine.Memory.Use()
	return message.LimitUse{Client: one, All: all, Used: used, Most: most}
}

func usePlacementBytes(s *Server, _ []clientUse) message.LimitUse {
	use := message.LimitUse{Client: s.Limits.PlacementBytes}
	for _, p := range s.Models.Catalog.PlaceStats() {
		use.All += p.Budget
		use.Used += p.Bytes
	}
	return use
}

func useTasks(s *Server, _ []clientUse) message.LimitUse {
	stats := s.Engine.Tasks.Stats()
	return message.LimitUse{Client: int64(s.Limits.Tasks), All: int64(taskCapacity(s.Tasks.Capacity)), Used: int64(stats.Pending + stats.Running)}
}

func useRingBytes(s *Server, _ []clientUse) message.LimitUse {
	use := budgetUse(s.Totals.Rings)
	if ring := s.Limits.Wire.WithDefaults().Ring; ring > 0 {
		use.Client = 4096 + 2*int64(ring) // PROTOCOL.md, Rings: the indices and two rings
	}
	use.Most = min(use.Client, use.Used)
	return use
}

// taskCapacity returns the maximum number of tasks for an option.
func taskCapacity(option int) int { return cmp.Or(max(option, 0), task.DefaultCapacity) }
