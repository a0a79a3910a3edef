package endpoint

import (
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/module/catalog"
)

// ServerOptions configures a server.
type ServerOptions struct {
	// Socket is the path to listen on. The default is SocketPath("", 0).
	Socket string
	// Listener is a bound Unix socket, for example from systemd socket activation. The server takes ownership and uses
	// Socket only as its name. It creates no lock and leaves the socket file alone.
	Listener *net.UnixListener
	// LockWait is the time that NewServer waits for an owner that still holds the socket, before it fails with [ErrInUse]. The
	// kernel needs some time to end a process that was killed, more if it has much memory. 0 does not wait.
	LockWait time.Duration
	// Local makes a server without a socket: only this process uses it, and Serve fails. Socket and Listener must be
	// unset.
	Local bool
	// Devices are the devices whose tensors the server can share. They are borrowed and must outlive the server.
	Devices []driver.Device
	// Retain limits the superseded versions of a name that are kept without readers. The zero value keeps none. A
	// publication may replace it for its name ([PublishOptions.Retain]).
	Retain Retention
	// Keep, if not nil, holds the published versions after this process has ended, however it ends. The next server with
	// the same store adopts them: names, numbers and memory stay, and clients keep their leases. Publications return
	// after the store has the memory and the journal has the version, and fail if that fails. Memory without a descriptor
	// (CUDA IPC) is not kept. A version that the server cannot map, for example because its device is missing, stays in the
	// store and is listed as [ModelInfo.NotAdopted]. Only a version with a damaged manifest is freed. The store is borrowed until the server is closed. Package keeper has stores.
	Keep Store
	// Placements are devices of Devices on which the server copies versions for clients that acquire them there
	// ([AcquireOptions].Device). On other devices clients can acquire only what was published there.
	Placements []PlacementOptions
	// RenewalTime is the time that readers have to renew their leases after this server has adopted the versions of an
	// earlier one. Superseded and withdrawn versions without readers are freed then. 0 means 10 s. Clients
	// that connect again pause up to a second between two attempts.
	RenewalTime time.Duration
	// AllowUIDs lists users, besides the server's own, whose processes may connect. They may also publish.
	AllowUIDs []uint32
	// Policy decides which processes may connect, and what each may do. Nil gives all rights to the server's own user and
	// to AllowUIDs, which must be empty otherwise. The policy must not change afterwards; [Server.SetPolicy] replaces it.
	// With a policy, Offers may be nil: the policy alone then decides who may offer endpoints.
	Policy *access.Policy
	// Audit receives one line for each change to models, endpoints and objects, with the process that made it: its uid,
	// gid, pid, program, session and label. Nil writes none. Lines that its handler fails to write are reported in Logger, and
	// counted by the limit audit_lines of [ServerInfo].
	Audit *slog.Logger
	// RequireAudit refuses each change with [ErrUnavailable] if its line cannot be written. Audit then receives an additional
	// line with state=requested before each change.
	RequireAudit bool
	// Limits limits what clients can make the server hold.
	Limits Limits
	// Registry holds the functions that clients can call. It is borrowed and may be nil. Endpoints registered later are
	// callable immediately.
	Registry *Registry
	// Offers decides which clients may offer endpoints, whose functions they run themselves ([Client.Offer]). It
	// receives the client and the names of the endpoints, and refuses the offer by returning an error. Nil refuses all
	// offers; [AllowOffers] accepts all. Callers cannot distinguish offered endpoints from those of the registry, so an
	// offering client is trusted with their arguments. Offers is called on a client's reading goroutine and must not
	// wait.
	Offers func(client Peer, endpoints []string) error
	// Interceptors wrap the calls, tasks and streams of clients and of the server itself. The first is the outermost.
	Interceptors []Interceptor
	// Results limits the cache of results.
	Results ResultOptions
	// Tasks limits tasks.
	Tasks TaskOptions
	// Label is a name for people, shown to clients. At most 64 bytes.
	Label string
	// Logger receives messages for operators. If nil, warnings and errors are logged to slog.Default().
	Logger *slog.Logger
	// LogLost, if not nil, returns the number of lines that the handler of Logger has dropped, for the limit log_lines of
	// [ServerInfo]. A logger whose reader stops must not block: requests log.
	LogLost func() uint64
}

// Retention limits the superseded versions of a name that are kept without readers, newest first: by number, by the time
// since they were superseded, and by bytes. Zero fields are no limit; the zero value keeps none.
type Retention = catalog.Retention

// PlacementOptions configures the placements of versions on one device: copies that the server makes once for all clients
// that acquire the version there.
type PlacementOptions struct {
	// Device is one of [ServerOptions].Devices.
	Device driver.Device
	// Budget limits the bytes of the placements on the device; 0 means the memory of the device. If a new placement has
	// no room, unused ones are freed, earliest unused first. They are also freed if the device refuses memory. If the
	// placements in use leave no room, acquire fails with [ErrLimit].
	Budget int64
	// Keep is how long a placement stays after its last lease; 0 frees it with the last lease.
	Keep time.Duration
}

// Store holds descriptors by name after the process that stored them has ended. Methods are safe for concurrent use and
// do not wait without end. A store that several processes can change also has PutNew, which is Put and fails with
// [ErrInUse] if the name is in use.
type Store interface {
	// Put stores a duplicate of f, which it borrows, under a name of letters, digits and dots. It returns nil once the
	// descriptor outlives this process.
	Put(name string, f *os.File) error
	// Remove closes the descriptors of the names. Unknown names are no error.
	Remove(names ...string) error
	// Stored returns duplicates of all descriptors, owned by the caller.
	Stored() (map[string]*os.File, error)
}

// AdoptedVersion is a version that an earlier server had published ([ServerOptions.Keep]).
type AdoptedVersion struct {
	// Name and Version name it. Current means that new readers get it.
	Name    string
	Version uint64
	Current bool
	// Source is that of its publication.
	Source string
	// SourceID is that of its publication, or of the version that it replaced if it had none.
	SourceID string
}

// ResultOptions limits the cache of results. Zero fields have defaults.
type ResultOptions struct {
	// Entries is the maximum number of cached results; the default is [cache.DefaultEntries]. Negative means unlimited.
	Entries int
	// Bytes limits the memory, encodings and keys of cached results. 0 means a quarter of the smallest memory of the
	// devices, negative unlimited. Results in use, as managed objects or as results of tasks, count and are not evicted. A single result
	// over the limit does not count; it stays cached while in use. Unused results are also evicted when a device runs
	// out of memory ([driver.Device.OnRefused]).
	Bytes int64
	// TTL is how long after its creation a result is returned from the cache; 0 means no limit. It also applies to
	// results in use: later callers get a new one.
	TTL time.Duration
}

// TaskOptions limits the tasks of a server. Zero fields have defaults.
type TaskOptions struct {
	// Workers is the number of tasks that run at once; the default is [task.DefaultWorkers].
	Workers int
	// Capacity is the maximum number of tasks, including finished ones; the default is [task.DefaultCapacity].
	Capacity int
	// Retain is the maximum number of finished tasks; the default is Capacity.
	Retain int
	// TTL is how long a finished task is kept; the default is [task.DefaultTTL].
	TTL time.Duration
	// Bytes limits the memory and encodings of results that tasks keep. 0 means a quarter of the smallest memory of the
	// devices, negative unlimited. Results of the tasks that finished first are evicted first. A result counts once for
	// each task that keeps it, even if the cache or an object keeps it too. Plain calls of an endpoint with [AsTask]
	// keep nothing, because the caller has the result.
	Bytes int64
}

// AllowOffers accepts the offers of all clients that may connect. It is a value for [ServerOptions.Offers].
func AllowOffers(Peer, []string) error { return nil }

// SocketPath returns the path of an owner's socket: base, a dash, the device index, ".sock". If base is empty, it is
// the value of SHARED_TENSOR_BASE_PATH, else $NVIDIA_DRA_LOCAL_IPC_DIR/shared-tensor-UID/shared-tensor if this process can use
// that directory, else $XDG_RUNTIME_DIR/shared-tensor, else /tmp/shared-tensor-UID/shared-tensor. It fails with
// [ErrConfiguration].
func SocketPath(base string, index int) (string, error) { return transport.SocketPath(base, index) }

// Version returns the version of this module as built into the program, such as "v0.1.0", or "devel".
func Version() string { return transport.Version() }
