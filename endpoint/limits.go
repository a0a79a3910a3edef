package endpoint

import (
	"math"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/unixsock"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire"
)

// Limits bound what peers can make a server hold and do. A zero field stands for its default. What each costs, what
// happens beyond it and how it is observed is one table: limitRows here, "Limits" in PROTOCOL.md. Memory is the
// smallest of what the server's devices say that the process may have ([driver.Bounded]).
type Limits struct {
	// Wire bounds frames, descriptors, and how long a peer may take for its hello and to read.
	Wire wire.Limits
	// Clients is how many may be connected at once; 16384, or an eighth of the descriptors that the process may have if
	// that is less.
	Clients int
	// Requests is how many of one client may be in flight; 16384.
	Requests int
	// RequestTime is how long one request may take; 0 for as long as the client waits. Beyond it the work is stopped
	// and the request is answered with code 24.
	RequestTime time.Duration
	// RequestBytes is how many bytes the requests of one client in flight may have, and the arguments of its tasks that
	// have not ended; 256 MiB. A descriptor counts as 16 KiB. One request more is refused, unless it is the only one;
	// the connection is read on, so that the client can still cancel.
	RequestBytes int64
	// RequestBytesTotal is how many bytes requests of all clients may have, those that have come in part included: an
	// eighth of the memory, 256 MiB to 4 GiB. Bodies of up to 8 KiB do not count. Of this and the two limits below one
	// client has at most two thirds: twice as much as it leaves free.
	RequestBytesTotal int64
	// AnswerBytes is how many bytes of answers and of items of streams one client may have that it has not read yet;
	// 256 MiB. AnswerBytesTotal is the same for all together: an eighth of the memory, 256 MiB to 4 GiB. Answers of up
	// to 4 KiB do not count, and a manifest is in memory once, however many read it.
	AnswerBytes, AnswerBytesTotal int64
	// Descriptors is how many descriptors of requests in flight all clients may have together, those of requests that
	// have come in part included; 65536, or three eighths of what the process may have if that is less.
	Descriptors int
	// Subscriptions is how many leases one client may have, and names in watches; 65536. A watch of all names counts as
	// 1024. The first is never refused.
	Subscriptions int
	// Objects is how many references to managed objects one client may have; 65536.
	Objects int
	// KeptBytes is how many bytes of memory of its arguments are kept mapped for one client between calls; a sixteenth
	// of the memory, and none where it is negative. A storage takes a descriptor: at most 64 are kept for a client, and
	// 4096 for all, or a sixteenth of the descriptors that the process may have if that is less. What no call has named
	// for three seconds is unmapped.
	KeptBytes int64
	// SlabBytes is how many bytes one client may have of memory of results that is used again ([ResultDevice]), in use
	// or not; a sixteenth of the memory, and none where it is negative. SlabBytesTotal is the same for all together: a
	// quarter of the memory. A slab takes a descriptor: there are at most 64 for a client, and 4096 for all, or a
	// sixteenth of the descriptors that the process may have if that is less. One that nobody has used for three
	// seconds is given back.
	SlabBytes, SlabBytesTotal int64
	// RingBytesTotal is how many bytes the rings of all clients may have, by which small frames go
	// ([wire.Limits].Ring): 1/256 of the memory, 16 to 256 MiB. A client for which there is no room goes on without; so
	// does one that has not asked for more than a few things.
	RingBytesTotal int64
	// ObjectBytes is how much memory the results may have that the server keeps for one client: managed objects as long
	// as it has references, other results until they have been sent. Three quarters of what the process may have of the
	// server's devices. The only result of a client is never refused. ObjectBytesTotal is the same for all together,
	// each result counted once: all that the process may have of them.
	ObjectBytes, ObjectBytesTotal int64
	// Offers is how many endpoints one client may offer ([Client.Offer]); 256. OffersTotal is the same for all
	// together, where one that two clients offer counts twice; 4096. OfferBytes and OfferBytesTotal are how many bytes
	// their descriptions may have; 1 MiB and 16 MiB.
	Offers, OffersTotal         int
	OfferBytes, OfferBytesTotal int64
	// WorkerCalls is how many calls a client that offers endpoints gets at once, those included that were cancelled and
	// that it has not answered; 1024. More of them wait.
	WorkerCalls int
	// WorkerTime is how long a client may take for the answer to one call; 0 for as long as the caller waits, which a
	// task does for ever. Beyond it the caller gets code 24.
	WorkerTime time.Duration
	// Idle is how long a client may stay that has no leases, references, watches, offers or requests in flight and
	// sends none; after that, and within half as much more, the owner says goodbye to it, and a [Client] dials again
	// when it is used. 0 for as long as it likes.
	Idle time.Duration
	// Tasks is how many unfinished tasks one client may have, calls of endpoints with [Task] included; three quarters
	// of the capacity of [TaskOptions], so that none leaves no room for others.
	Tasks int
	// Publish is what one client may have published: 1024 versions, 4096 storages, manifests that cost 256 MiB, and as
	// many bytes as the server's devices have.
	Publish PublishLimits
	// PublishTotal is what all clients may have published together, those that have gone included: 8192 versions; 16384
	// storages, or three sixteenths of the descriptors that the process may have if that is less; manifests that cost
	// 512 MiB, or a sixteenth of the memory if that is less; as many bytes as the server's devices have.
	PublishTotal PublishLimits
}

// Sizes of defaults.
const (
	leastTotal = 256 << 20 // of bytes of requests, or of answers, of all clients
	mostTotal  = 4 << 30
	leastRings = 16 << 20 // of bytes of rings of all clients
	mostRings  = 256 << 20
	noMemory   = 4 << 30 // is taken for the memory where no device says how much there is
)

// share is how much of the capacity one client has.
func (o *TaskOptions) share() int {
	capacity := o.Capacity
	if capacity <= 0 {
		capacity = task.DefaultCapacity
	}
	return capacity - capacity/4
}

// memoryLimit is the least of what the devices say that this process may have, and what sets that bound.
func memoryLimit(devices []driver.Device) (bytes int64, why string) {
	for _, dev := range devices {
		info := dev.Info()
		n, reason := info.TotalBytes, "the memory of "+info.String()
		if bounded, can := dev.(driver.Bounded); can {
			n, reason = bounded.MemoryLimit()
		}
		if n > 0 && (bytes == 0 || n < bytes) {
			bytes, why = n, reason
		}
	}
	if bytes == 0 {
		return noMemory, "4 GiB, since no device says how much memory there is"
	}
	return bytes, why
}

// totalMemory is the memory of all devices; no bound where one does not say.
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

// MemoryBudget is how many bytes of results a server keeps by default of those that calls have made, in its cache and
// for its tasks each: a quarter of the smallest memory of its devices. The reason says so for people.
func MemoryBudget(devices []driver.Device) (bytes int64, why string) {
	memory, of := memoryLimit(devices)
	return memory / 4, "a quarter of " + of
}

// defaults fills in what is zero.
func (l *Limits) defaults(devices []driver.Device) {
	memory, _ := memoryLimit(devices)
	files := unixsock.MaxOpenFiles()
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

// orDefault sets a field that has no value.
func orDefault[T int | int64](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

// budget fills in the default and returns where it comes from.
func (o *ResultOptions) budget(bytes int64, why string) string { return budgetOr(&o.Bytes, bytes, why) }

// budget fills in the default and returns where it comes from.
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

// boundedMemory is what this process may have of all devices together; no bound where one does not say.
func boundedMemory(devices []driver.Device) int64 {
	sum := totalMemory(devices)
	for _, dev := range devices {
		if bounded, can := dev.(driver.Bounded); can {
			if n, _ := bounded.MemoryLimit(); n > 0 && n < dev.Info().TotalBytes {
				sum -= dev.Info().TotalBytes - n
			}
		}
	}
	return sum
}
