package endpoint

import (
	"log/slog"
	"net"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire"
)

// ServerOptions says where an owner listens and what it may hand out. The zero value serves nothing until Devices is set.
type ServerOptions struct {
	// Socket is the path to listen on; empty stands for SocketPath("", 0).
	Socket string
	// Listener is a Unix socket that is bound already, as systemd hands over. If set it is taken, Socket is only its name, and neither
	// a lock nor the socket file is touched.
	Listener *net.UnixListener
	// Devices are what tensors may live on. Borrowed: they must outlive the server.
	Devices []driver.Device
	// Retain is how many superseded versions of a name are kept though nobody reads them.
	Retain int
	// AllowUIDs are the users, beside the server's own, whose processes may connect. Whoever may connect may also publish.
	AllowUIDs []uint32
	// Limits bound what peers can make the server hold.
	Limits Limits
	// Registry has the functions that clients can call; nil for none. Borrowed. Endpoints that are registered later can be called at
	// once.
	Registry *Registry
	// Results bounds what is kept of results.
	Results ResultOptions
	// Tasks bounds the tasks.
	Tasks TaskOptions
	// Label is a name for people, shown to clients. At most 64 bytes.
	Label string
	// Logger gets what operators should know. Nil stands for slog.Default(), of which warnings and errors are used only.
	Logger *slog.Logger
}

// Limits bound what peers can make a server hold. A zero field stands for its default.
type Limits struct {
	// Wire bounds frames, descriptors, and how long a peer may take to introduce itself and to read.
	Wire wire.Limits
	// Clients is how many may be connected at once; 16384.
	Clients int
	// Requests is how many of one client may be in flight; 16384.
	Requests int
	// RequestBytes is how many bytes the requests of one client in flight may have, and the arguments of its tasks that have not ended;
	// 256 MiB. A descriptor counts as 16 KiB. One request more is refused, unless it is the only one; the connection is
	// read on, so that the client can still cancel.
	RequestBytes int64
	// Subscriptions is how many leases one client may have, and names in watches; 65536. A watch of all names counts as 1024. The
	// first is never refused.
	Subscriptions int
	// Objects is how many references to managed objects one client may have; 65536.
	Objects int
	// Idle is how long a client may stay that has no leases, references, watches or requests in flight and sends none; after that, and within
	// half as much more, the owner says goodbye to it, and a [Client] dials again when it is used. 0 for as long as it likes.
	Idle time.Duration
	// Tasks is how many unfinished tasks one client may have, calls of endpoints with [Task] included; three quarters of the capacity of
	// [TaskOptions], so that none leaves no room for others.
	Tasks int
	// Publish is what one client may have published: 1024 versions, 4096 storages.
	Publish PublishLimits
	// PublishTotal is what all clients may have published together, those that have gone included: 8192 versions; 16384 storages, or half
	// as many as the process may have open descriptors if that is less.
	PublishTotal PublishLimits
}

// ResultOptions bound the cache of results. A zero field stands for its default.
type ResultOptions struct {
	// Entries is how many results are kept; [cache.DefaultEntries]. Negative for no bound.
	Entries int
	// Bytes is how many bytes of memory, encoding and keys they may have together; 0 for no bound. What somebody has, as a managed object or
	// the result of a task, counts and is not dropped for it. A result that is larger by itself is not kept at all, which is why there is no
	// default: it would let a model that exceeds it be built at each call. An owner whose peers can have many results made sets it.
	Bytes int64
	// TTL is how long a result is handed out after it was made; 0 for as long as there is room. One that somebody has gets too old as well:
	// who asks after that gets a new one.
	TTL time.Duration
}

// TaskOptions bound the tasks of a server. A zero field stands for its default.
type TaskOptions struct {
	// Workers is how many run at once; [task.DefaultWorkers].
	Workers int
	// Capacity is how many are known, finished ones included; [task.DefaultCapacity].
	Capacity int
	// Retain is how many finished ones are kept; as many as the capacity allows.
	Retain int
	// TTL is how long a finished one is kept; [task.DefaultTTL].
	TTL time.Duration
	// Bytes is how many bytes of memory and encoding the results that tasks keep may have together; 0 for no bound. The results of those that
	// finished first go first. A result that several tasks keep counts for each, and so does one that the cache or an object keeps too.
	// What a plain call of an endpoint with [Task] made is not kept: the caller has it.
	Bytes int64
}

// share is how much of the capacity one client has.
func (o *TaskOptions) share() int {
	capacity := o.Capacity
	if capacity <= 0 {
		capacity = task.DefaultCapacity
	}
	return capacity - capacity/4
}

func (l *Limits) defaults() {
	if l.Clients <= 0 {
		l.Clients = 16384
	}
	if l.Requests <= 0 {
		l.Requests = 16384
	}
	if l.RequestBytes <= 0 {
		l.RequestBytes = 256 << 20
	}
	if l.Subscriptions <= 0 {
		l.Subscriptions = 65536
	}
	if l.Objects <= 0 {
		l.Objects = 65536
	}
	l.Publish.defaults(1024, 4096)
	l.PublishTotal.defaults(8192, min(16384, maxOpenFiles()/2))
}

func (l *PublishLimits) defaults(versions, storages int) {
	if l.Versions <= 0 {
		l.Versions = versions
	}
	if l.Storages <= 0 {
		l.Storages = storages
	}
}
