package endpoint

import (
	"log/slog"
	"net"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
)

// ServerOptions says where an owner listens and what it may hand out. The zero value serves nothing until Devices is
// set.
type ServerOptions struct {
	// Socket is the path to listen on; empty stands for SocketPath("", 0).
	Socket string
	// Listener is a Unix socket that is bound already, as systemd hands over. If set it is taken, Socket is only its
	// name, and neither a lock nor the socket file is touched.
	Listener *net.UnixListener
	// Devices are what tensors may live on. Borrowed: they must outlive the server.
	Devices []driver.Device
	// Retain is how many superseded versions of a name are kept though nobody reads them.
	Retain int
	// AllowUIDs are the users, beside the server's own, whose processes may connect. Whoever may connect may also
	// publish.
	AllowUIDs []uint32
	// Limits bound what peers can make the server hold.
	Limits Limits
	// Registry has the functions that clients can call; nil for none. Borrowed. Endpoints that are registered later can
	// be called at once.
	Registry *Registry
	// Offers decides which clients may offer endpoints whose functions they run themselves ([Client.Offer]): it gets the
	// client and the names of the endpoints, and refuses them by an error. Nil refuses all, [AllowOffers] none. Other
	// clients find no difference between such endpoints and those of the registry, so whoever may offer is trusted with
	// what they send there. It is called by a client's reading goroutine and must not wait.
	Offers func(client Peer, endpoints []string) error
	// Interceptors stand in front of the functions: calls, tasks and streams of clients and of the server itself, the
	// first one outermost.
	Interceptors []Interceptor
	// Results bounds what is kept of results.
	Results ResultOptions
	// Tasks bounds the tasks.
	Tasks TaskOptions
	// Label is a name for people, shown to clients. At most 64 bytes.
	Label string
	// Logger gets what operators should know. Nil stands for slog.Default(), of which warnings and errors are used
	// only.
	Logger *slog.Logger
}

// ResultOptions bound the cache of results. A zero field stands for its default.
type ResultOptions struct {
	// Entries is how many results are kept; [cache.DefaultEntries]. Negative for no bound.
	Entries int
	// Bytes is how many bytes of memory, encoding and keys they may have together; 0 for what [MemoryBudget] says,
	// negative for no bound. What somebody has, as a managed object or the result of a task, counts and is not dropped
	// for it. A result that is larger by itself does not count: it is found as long as somebody has it, and dropped
	// then. Whatever the bound, results that nobody has are dropped where a device refuses memory ([driver.Reclaimer]).
	Bytes int64
	// TTL is how long a result is handed out after it was made; 0 for as long as there is room. One that somebody has
	// gets too old as well: who asks after that gets a new one.
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
	// Bytes is how many bytes of memory and encoding the results that tasks keep may have together; 0 for what
	// [MemoryBudget] says, negative for no bound. The results of those that finished first go first. A result that
	// several tasks keep counts for each, and so does one that the cache or an object keeps too. What a plain call of
	// an endpoint with [Task] made is not kept: the caller has it.
	Bytes int64
}
