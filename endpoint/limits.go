package endpoint

import (
	"math"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire"
)

// Limits limits what clients can make a server hold and do. Zero fields have defaults. The table "Limits" in
// PROTOCOL.md (limitRows in this package) lists the cost of each, what happens beyond it and how to observe it. Memory
// means the smallest amount that the server's devices report as available to the process ([driver.Device.MemoryLimit]).
type Limits struct {
	// Wire limits frames and descriptors, and the time a peer has for its hello and for reading.
	Wire wire.Limits
	// Clients is the maximum number of connections; 16384, or an eighth of the process's descriptor limit if that is
	// less.
	Clients int
	// Requests is the maximum number of requests of one client in flight; 16384.
	Requests int
	// RequestTime limits the duration of one request; 0 means no limit while the client waits. At the limit the work is
	// cancelled and the request fails with code 24.
	RequestTime time.Duration
	// RequestBytes limits the bytes of one client's requests in flight and of the arguments of its unfinished tasks;
	// 256 MiB. A descriptor counts as 16 KiB. A request over the limit is refused unless it is the only one. The
	// connection is still read, so that the client can cancel.
	RequestBytes int64
	// RequestBytesTotal limits the bytes of all clients' requests, including partly received ones; an eighth of the
	// memory, 256 MiB to 4 GiB. Bodies of up to 8 KiB do not count. One client can use at most two thirds of this limit
	// and of each of the next two: twice as much as it leaves free.
	RequestBytesTotal int64
	// AnswerBytes limits the bytes of one client's unread answers and stream items; 256 MiB. AnswerBytesTotal limits
	// those of all clients; an eighth of the memory, 256 MiB to 4 GiB. Answers of up to 4 KiB do not count. A manifest
	// is in memory once for all its readers.
	AnswerBytes, AnswerBytesTotal int64
	// Descriptors limits the descriptors of all clients' requests in flight, including partly received ones; 65536, or
	// three eighths of the process's descriptor limit if that is less.
	Descriptors int
	// Subscriptions limits the leases and watched names of one client; 65536. A watch of all names counts as 1024. The
	// first subscription is never refused.
	Subscriptions int
	// Objects limits one client's references to managed objects; 65536.
	Objects int
	// KeptBytes limits the argument memory that stays mapped for one client between calls; a sixteenth of the memory.
	// Negative disables this. Each storage uses a descriptor: at most 64 are kept per client, and in total 4096 or a
	// sixteenth of the process's descriptor limit if that is less. Memory is unmapped after three seconds without a
	// call that uses it.
	KeptBytes int64
	// SlabBytes limits one client's reusable memory for results ([ResultDevice]), in use or free; a sixteenth of the
	// memory. Negative disables this. SlabBytesTotal limits that of all clients; a quarter of the memory. Each slab
	// uses a descriptor: there are at most 64 per client, and in total 4096 or a sixteenth of the process's descriptor
	// limit if that is less. A slab is freed after three seconds without use.
	SlabBytes, SlabBytesTotal int64
	// RingBytesTotal limits the memory of all clients' rings for small frames ([wire.Limits].Ring); 1/256 of the
	// memory, 16 to 256 MiB. A client beyond the limit, or one that has made only a few requests, has no ring.
	RingBytesTotal int64
	// ObjectBytes limits the memory of results that the server keeps for one client: managed objects while it has
	// references, other results until they are sent. It is three quarters of the process's share of the server's
	// devices. The only result of a client is never refused. ObjectBytesTotal limits that of all clients, counting each
	// result once; it is the whole share.
	ObjectBytes, ObjectBytesTotal int64
	// Offers limits the endpoints that one client may offer ([Client.Offer]); 256. OffersTotal limits those of all
	// clients, counting an endpoint once per client; 4096. OfferBytes and OfferBytesTotal limit the size of their
	// descriptions; 1 MiB and 16 MiB.
	Offers, OffersTotal         int
	OfferBytes, OfferBytesTotal int64
	// WorkerCalls is the maximum number of calls that a client that offers endpoints runs at once; 1024. A cancelled call
	// counts until its function ends. More calls wait. They fail with [ErrLimit] if all workers of the endpoint are full
	// of calls that were cancelled 30 seconds ago.
	WorkerCalls int
	// WorkerTime limits one call to a worker; 0 means no limit while the caller waits, which is unlimited for a task.
	// At the limit the caller receives code 24.
	WorkerTime time.Duration
	// Idle is how long a client without leases, references, watches, offers and requests may stay connected; 0 means no
	// limit. The server ends such a connection within 1.5 times this period. A [Client] reconnects on its next use.
	Idle time.Duration
	// Tasks limits the unfinished tasks of one client, including calls of endpoints with [AsTask]; three quarters of the
	// capacity in [TaskOptions], so that one client cannot use all of it.
	Tasks int
	// Publish limits the publications of one client: 1024 versions, 4096 storages, manifests that cost 256 MiB, and as
	// many bytes as the server's devices have.
	Publish PublishLimits
	// PublishTotal limits the publications of all clients, including disconnected ones: 8192 versions; 16384 storages,
	// or three sixteenths of the process's descriptor limit if that is less; manifests that cost 512 MiB, or a
	// sixteenth of the memory if that is less; and as many bytes as the server's devices have.
	PublishTotal PublishLimits
}

// Sizes of defaults.
const (
	leastTotal = 256 << 20 // bytes of all clients' requests, or of their answers
	mostTotal  = 4 << 30
	leastRings = 16 << 20 // bytes of all clients' rings
	mostRings  = 256 << 20
	noMemory   = 4 << 30 // assumed if no device reports its memory
)

// share returns the part of the capacity that one client can use.
func (o *TaskOptions) share() int {
	capacity := o.Capacity
	if capacity <= 0 {
		capacity = task.DefaultCapacity
	}
	return capacity - capacity/4
}

// memoryLimit returns the smallest amount of memory that a device reports as available to this process, and the origin
// of that bound.
func memoryLimit(devices []driver.Device) (bytes int64, why string) {
	for _, dev := range devices {
		n, reason := dev.MemoryLimit()
		if n > 0 && (bytes == 0 || n < bytes) {
			bytes, why = n, reason
		}
	}
	if bytes == 0 {
		return noMemory, "4 GiB, since no device says how much memory there is"
	}
	return bytes, why
}

// totalMemory returns the memory of all devices. It is unbounded if a device does not report its memory.
func totalMemory(devices []driver.Device) (sum int64) {
	for _, dev := range devices {
		n := dev.Info().TotalBytes
		if n <= 0 || n > math.MaxInt64-sum {
			return math.MaxInt64
		}
		sum += n
	}
	return sum
}

// memoryBudget returns the default limit on the bytes of results that the cache keeps, and also on those that tasks
// keep: a quarter of the smallest memory of the devices. The second result explains the value for people.
func memoryBudget(devices []driver.Device) (bytes int64, why string) {
	memory, of := memoryLimit(devices)
	return memory / 4, "a quarter of " + of
}

// defaults replaces zero fields by defaults.
func (l *Limits) defaults(devices []driver.Device) {
	memory, _ := memoryLimit(devices)
	files := transport.MaxOpenFiles()
	total := min(max(memory/8, leastTotal), mostTotal)
	orDefault(&l.Clients, min(16384, files/8))
	orDefault(&l.Requests, 16384)
	orDefault(&l.RequestBytes, 256<<20)
	orDefault(&l.RequestBytesTotal, total)
	orDefault(&l.AnswerBytes, 256<<20)
	orDefault(&l.AnswerBytesTotal, total)
	orDefault(&l.Descriptors, min(65536, files/8*3))
	if l.KeptBytes == 0 {
		l.KeptBytes = memory / 16
	}
	if l.SlabBytes == 0 {
		l.SlabBytes = memory / 16
	}
	orDefault(&l.SlabBytesTotal, memory/4)
	orDefault(&l.RingBytesTotal, min(max(memory/256, leastRings), mostRings))
	orDefault(&l.Subscriptions, 65536)
	orDefault(&l.Objects, 65536)
	orDefault(&l.Offers, 256)
	orDefault(&l.OffersTotal, 4096)
	orDefault(&l.OfferBytes, 1<<20)
	orDefault(&l.OfferBytesTotal, 16<<20)
	orDefault(&l.WorkerCalls, 1024)
	results := boundedMemory(devices)
	orDefault(&l.ObjectBytes, results/4*3)
	orDefault(&l.ObjectBytesTotal, results)
	published := totalMemory(devices)
	manifests := min(512<<20, memory/16)
	l.Publish.defaults(PublishLimits{Versions: 1024, Storages: 4096, Bytes: published, ManifestBytes: min(256<<20, manifests)})
	l.PublishTotal.defaults(PublishLimits{
		Versions: 8192, Storages: min(16384, files/16*3), Bytes: published, ManifestBytes: manifests,
	})
}

func (l *PublishLimits) defaults(d PublishLimits) {
	orDefault(&l.Versions, d.Versions)
	orDefault(&l.Storages, d.Storages)
	orDefault(&l.Bytes, d.Bytes)
	orDefault(&l.ManifestBytes, d.ManifestBytes)
}

// orDefault sets *field to value if it is zero.
func orDefault[T int | int64](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

// budget sets the default and returns the origin of the value.
func (o *ResultOptions) budget(bytes int64, why string) string { return budgetOr(&o.Bytes, bytes, why) }

// budget sets the default and returns the origin of the value.
func (o *TaskOptions) budget(bytes int64, why string) string { return budgetOr(&o.Bytes, bytes, why) }

func budgetOr(field *int64, bytes int64, why string) string {
	switch {
	case *field == 0:
		*field = bytes
		return why
	case *field < 0:
		return "the owner asked for no bound"
	}
	return "the owner asked for it"
}

// boundedMemory returns the memory of all devices that is available to this process. It is unbounded if a device does
// not report its memory.
func boundedMemory(devices []driver.Device) int64 {
	sum := totalMemory(devices)
	for _, dev := range devices {
		if n, _ := dev.MemoryLimit(); n > 0 && n < dev.Info().TotalBytes {
			sum -= dev.Info().TotalBytes - n
		}
	}
	return sum
}
