package endpoint

import (
	"time"

	"github.com/sharedtensor/sharedtensor/wire"
)

// Limits limits what clients can make a server hold and do. Zero fields have defaults. The table "Limits" in
// PROTOCOL.md lists the cost of each, what happens beyond it and how to observe it. Memory
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
	// KeptBytes limits the memory of one client's arguments that both sides keep mapped between calls, and separately the
	// memory of its results ([ResultDevice]); a sixteenth of the memory. Negative disables this. KeptBytesTotal limits that
	// of all clients; a quarter of the memory. Each mapping uses a descriptor: there are at most 64 of arguments and 64 of
	// results for one client, and in total 4096 or a sixteenth of the process's descriptor limit if that is less. A mapping
	// ends after three seconds without use.
	KeptBytes, KeptBytesTotal int64
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
	// PlacementBytes limits the bytes of the placements that one client holds or waits for ([ServerOptions].Placements);
	// 0 means no limit below the budget of the device.
	PlacementBytes int64
	// PartTime is how long a version of several parts may wait for the others after the first one; 5 minutes. Then its
	// publishers receive [ErrIncomplete].
	PartTime time.Duration
}

// PublishLimits limits what clients may have published. A version counts from its publication until its memory is
// freed, so superseded and withdrawn versions count while they are leased. The owner's own publications do not count.
type PublishLimits = struct {
	// Versions is the maximum number of versions of all names.
	Versions int
	// Storages is the maximum number of storages. Each uses a descriptor and a mapping in the owner.
	Storages int
	// Bytes limits the sizes of their files. Sparse files count in full.
	Bytes int64
	// ManifestBytes limits the sum of the costs of their manifests: upper bounds of the owner's memory for tensor names
	// and locations.
	ManifestBytes int64
}
