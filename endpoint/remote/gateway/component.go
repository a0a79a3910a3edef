// Package gateway lets an owner of tensors be used from other hosts: it is a client of the owner's socket like any
// other and serves what its components offer on an HTTP listener, a gRPC listener and a NATS connection.
//
// A component (JSON-RPC, tensor streams, bins, remote compute, inference) implements Component, and may implement the
// small interfaces beside it. Gateway.Run builds an Env, calls Register of each component in the order in which they
// were given, opens the listeners, and on the way down closes the components in the opposite order when no request is
// in flight any more.
package gateway

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// Component is something that the gateway offers.
type Component interface {
	// Name is one lower-case word: the component's key in flags, logs, health and the page.
	Name() string
	// Register hooks the component into the listeners of env and starts what it needs. It is called once, before the
	// listeners open. env stays valid until Close has returned. An error keeps the gateway from starting.
	Register(ctx context.Context, env *Env) error
	// Close ends what Register started. It is called once, also after a Register that failed half-way, when the
	// listeners are closed and requests have ended or the time for them is over. ctx bounds it.
	Close(ctx context.Context) error
}

// Env is what a component works with. All of it is borrowed.
type Env struct {
	// Owner is the owner that the gateway is attached to.
	Owner Owner
	// Devices are what memory of the owner can be mapped on and what tensors that arrive are put on; the first is the
	// default. It is never empty.
	Devices []driver.Device
	// Arrivals is where bytes go that come from other hosts, are written once and in order, and are published or handed
	// on: the first of Devices, or where that is host memory, host memory whose pages are taken as they are written.
	Arrivals driver.Device
	// HTTP takes handlers by the patterns of http.ServeMux. Identity, limits, metrics and traces are in front of it.
	// Nil where HTTP is off.
	HTTP Mux
	// GRPC takes services. Identity, metrics and traces are in front of it. Nil where gRPC is off.
	GRPC grpc.ServiceRegistrar
	// NATS is the connection to the embedded server or the cluster; nil where NATS is off. It reconnects for ever and
	// buffers nothing while it is away (other-side outages are errors, not delays).
	NATS *nats.Conn
	// Metrics takes collectors. Names begin with "sharedtensor_gateway_" and the component's name.
	Metrics prometheus.Registerer
	// Calls counts calls for /metrics and the page. HTTP requests and gRPC calls are counted already, by route and by
	// method.
	Calls *Calls
	// Logger has the component's name as an attribute.
	Logger *slog.Logger
	// Store is a folder of the component's own below the gateway's store, made already; empty where the gateway has
	// none.
	Store string
	// ReadOnly refuses what changes the owner or the store: a component does not register such calls, or answers them
	// with a refusal that says so.
	ReadOnly bool
	// MaxRequest bounds what of one request is held in memory, in bytes.
	MaxRequest int64
	// Stall is how long a peer may neither take nor send a byte of a transfer.
	Stall time.Duration
	// Version is the version of the gateway.
	Version string
	// Advertise are the addresses at which peers reach the gateway, for answers that name them.
	Advertise Addresses
}

// Mux takes handlers; *http.ServeMux is one.
type Mux interface {
	// Handle registers a handler for a pattern such as "GET /v1/models/{name}". It panics where two patterns collide.
	Handle(pattern string, handler http.Handler)
}

// Owner is the attachment to an owner's socket, and to the functions of the program that embeds the gateway.
type Owner interface {
	// Client is the connection to the owner, for models and for what the owner tells; it dials again by itself when the
	// owner comes back. The error is endpoint.ErrUnavailable while there is no owner. Borrowed: not to be closed.
	Client() (*endpoint.Client, error)
	// Bind returns a context that also ends when the owner goes away that is attached now, with endpoint.ErrUnavailable
	// as its cause: without it a request waits for the owner to come back. The caller calls the function when the
	// request has ended.
	Bind(ctx context.Context) (context.Context, context.CancelFunc)
	// Caller finds where the endpoint of that name is called: in the program that embeds the gateway if it has one of
	// that name, else at the owner. The error is that of Client.
	Caller(endpoint string) (endpoint.Caller, error)
	// Callers are all there are, the embedding program's before the owner's. A task is looked for in each.
	Callers() []endpoint.Caller
	// Changed returns a channel that is closed when the owner next comes, goes or is replaced.
	Changed() <-chan struct{}
	// ServerID names the owner that is attached; empty while there is none.
	ServerID() string
}

// Addresses are the listeners of a gateway as host:port; empty where one is off.
type Addresses struct {
	HTTP, GRPC, NATS string
}

// GRPCConfigurer is a component that needs options of the gRPC server, such as a codec. It is asked before Register.
// Two components must not set the same option differently.
type GRPCConfigurer interface {
	// GRPCServerOptions returns the options.
	GRPCServerOptions() []grpc.ServerOption
}

// Checker is a component that can be unhealthy though it runs. It is asked every few seconds and by GET /readyz, and
// the answer is what grpc.health.v1 says of the services that it names.
type Checker interface {
	// Check returns nil where requests would succeed, and else why not, in one sentence. ctx bounds it.
	Check(ctx context.Context) error
	// HealthServices are the gRPC services that share the component's health.
	HealthServices() []string
}

// Configurer is a component with settings of its own. Each is a flag; the environment variable SHAREDTENSOR_<NAME> and
// the key <name> of the YAML file (dashes as they are) say the same.
type Configurer interface {
	// Flags adds the component's flags, with their defaults, to set.
	Flags(set *pflag.FlagSet)
	// CheckConfig says what is wrong with the settings, naming the flag. It must not open anything.
	CheckConfig() error
}

// StatusReporter is a component that shows something on the page.
type StatusReporter interface {
	// Status returns a value for encoding/json, such as a list of bins. It is asked about once a second while somebody
	// looks, and must be quick. ctx bounds it.
	Status(ctx context.Context) (any, error)
}
