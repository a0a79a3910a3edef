package server

import (
	"math"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
)

// Sizes of defaults.
const (
	leastTotal = 256 << 20 // bytes of all clients' requests, or of their answers
	mostTotal  = 4 << 30
	leastRings = 16 << 20 // bytes of all clients' rings
	mostRings  = 256 << 20
	noMemory   = 4 << 30 // assumed if no device reports its memory
)

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

// limitDefaults replaces zero fields by defaults.
func limitDefaults(l *status.Limits, devices []driver.Device) {
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
	orDefault(&l.KeptBytesTotal, memory/4)
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
	if l.PartTime <= 0 {
		l.PartTime = 5 * time.Minute
	}
	published := totalMemory(devices)
	manifests := min(512<<20, memory/16)
	publishDefaults(&l.Publish, status.PublishLimits{Versions: 1024, Storages: 4096, Bytes: published, ManifestBytes: min(256<<20, manifests)})
	publishDefaults(&l.PublishTotal, status.PublishLimits{
		Versions: 8192, Storages: min(16384, files/16*3), Bytes: published, ManifestBytes: manifests,
	})
}

func publishDefaults(l *status.PublishLimits, d status.PublishLimits) {
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

// budgetOr sets a default and returns the origin of the value.
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
