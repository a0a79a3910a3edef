// Package gateway makes an owner of tensors available to other hosts. A gateway is an ordinary client of the owner's
// socket. It serves its components on an HTTP listener, a gRPC listener and a NATS connection.
//
// A component (JSON-RPC, tensor streams, bins, remote compute, inference) implements [Component], and may implement the
// optional interfaces of this package. [Gateway.Run] builds an [Env] for each component, calls Register in the order of
// the components, and then opens the listeners. On shutdown it waits for requests in flight and closes the components
// in reverse order.
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
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

// Component is a service of the gateway.
type Component interface {
	// Name returns one lower-case word, which identifies the component in flags, logs, health reports and the page.
	Name() string
	// Register adds the component to the listeners of env and starts it. It is called once, before the listeners open.
	// env stays valid until Close has returned. If Register fails, the gateway does not start.
	Register(ctx context.Context, env *Env) error
	// Close stops what Register started. It is called once, also after a failed Register, when the listeners are closed
	// and requests have ended or the drain period is over. ctx limits its duration.
	Close(ctx context.Context) error
}

// Env is the environment of a component. The component borrows everything in it.
type Env struct {
	// Owner is the attachment to the owner.
	Owner Owner
	// Devices lists the devices that can map the owner's memory and that hold received tensors. It is never empty. The
	// first is the default.
	Devices []driver.Device
	// Arrivals is the device for bytes received from other hosts that are written once, in order, and then published or
	// passed on. It is the first of Devices. If that is host memory, Arrivals allocates its pages as they are written.
	Arrivals driver.Device
	// HTTP registers handlers by patterns of http.ServeMux. The gateway handles identity, limits, metrics and traces
	// for them. It is nil if HTTP is off.
	HTTP Mux
	// GRPC registers services. The gateway handles identity, metrics and traces for them. It is nil if gRPC is off.
	GRPC grpc.ServiceRegistrar
	// NATS is the connection to the embedded server or the cluster. It is nil if NATS is off. It reconnects without
	// limit and does not buffer while disconnected, so that an outage causes errors instead of delays.
	NATS *nats.Conn
	// Metrics registers collectors. Names start with "sharedtensor_gateway_" and the component's name.
	Metrics prometheus.Registerer
	// Calls counts calls for /metrics and the page. The gateway already counts HTTP requests by route and gRPC calls by
	// method.
	Calls *Calls
	// Logger adds the component's name as an attribute.
	Logger *slog.Logger
	// Store is an existing directory of the component below the gateway's store. It is empty if the gateway has no
	// store.
	Store string
	// ReadOnly forbids changes of the owner and the store. A component does not register calls that make changes, or
	// refuses them with an error that names the reason.
	ReadOnly bool
	// MaxRequest limits the bytes of one request that are held in memory. RequestLimit is the limit of a sender.
	MaxRequest int64
	// MaxMessage is the largest limit of any sender.
	MaxMessage int64
	// Stall is the maximum time for which a peer may neither send nor receive a byte of a transfer.
	Stall time.Duration
	// Admission limits the memory that clients occupy in the gateway. Components charge the bytes of requests to its
	// budget, or to pools with the same shares.
	Admission *admission.Controller
	// Digests holds the digests of versions. Components that receive versions record theirs, so that they need not be
	// computed again for the next host.
	Digests *modelwire.Digests
	// Serving ends when the gateway starts to drain. See [Env.Wait].
	Serving context.Context
	// Version is the version of the gateway.
	Version string
	// Advertise holds the addresses at which peers reach the gateway, for answers that contain addresses.
	Advertise Addresses

	// Scopes returns the scopes of NATS in the rules of the policy. It is nil if the gateway has no
	// policy.
	Scopes func() []string

	audit *slog.Logger

	requireAudit bool                   // changes need a record
	refusals     *prometheus.CounterVec // by right
}

// Mux registers handlers. *http.ServeMux implements it.
type Mux interface {
	// Handle registers a handler for a pattern such as "GET /v1/models/{name}". It panics if two patterns conflict.
	Handle(pattern string, handler http.Handler)
}

// Owner is the attachment to an owner's socket and to the functions of the embedding program.
type Owner interface {
	// Client returns the connection to the owner, for models and the owner's state. The connection redials
	// automatically when the owner returns. While there is no owner, the error is endpoint.ErrUnavailable. The caller
	// must not close the client.
	Client() (*endpoint.Client, error)
	// Bind returns a context that also ends when the current owner leaves, with endpoint.ErrUnavailable as its cause.
	// Without it, a request waits until the owner returns. The caller calls the function when the request has ended.
	Bind(ctx context.Context) (context.Context, context.CancelFunc)
	// Caller returns the caller for an endpoint: that of the embedding program if it has the endpoint, otherwise that
	// of the owner. Errors are those of Client.
	Caller(endpoint string) (endpoint.Caller, error)
	// Functions returns the functions of the embedding program and the owner from the gateway's cache. A list of the current owner is
	// at most two seconds old; if no owner can be asked, the last list of the current owner is returned. Borrowed.
	Functions(ctx context.Context) (*Functions, error)
	// ListFunctions is Functions with a list that is made after the call began.
	ListFunctions(ctx context.Context) (*Functions, error)
	// Callers returns all callers, the embedding program first. A task may belong to any of them.
	Callers() []endpoint.Caller
	// Changed returns a channel that is closed when the owner next attaches, leaves or is replaced.
	Changed() <-chan struct{}
	// ServerID identifies the attached owner. It is empty if there is none.
	ServerID() string
}

// Addresses holds the listeners of a gateway as host:port. A listener that is off has an empty address.
type Addresses struct {
	HTTP, GRPC, NATS, Admin string
}

// GRPCConfigurer is implemented by components that need options of the gRPC server, such as a codec. GRPCServerOptions
// is called before Register. Two components must not set the same option to different values.
type GRPCConfigurer interface {
	// GRPCServerOptions returns the server options.
	GRPCServerOptions() []grpc.ServerOption
}

// Checker is implemented by components that can be unhealthy while they run. Check is called every few seconds and by
// GET /readyz. Its result is the grpc.health.v1 status of the component's services.
type Checker interface {
	// Check returns nil if requests would succeed, otherwise an error with the reason in one sentence. ctx limits its
	// duration.
	Check(ctx context.Context) error
	// HealthServices returns the gRPC services that share the component's health.
	HealthServices() []string
}

// Configurer is implemented by components with settings. Each setting is a flag, an environment variable
// SHAREDTENSOR_<NAME> and a key <name> of the YAML file, with the dashes of the flag.
type Configurer interface {
	// Flags adds the component's flags with their defaults to set.
	Flags(set *pflag.FlagSet)
	// CheckConfig returns the errors of the settings, which name the flags. It must not open anything.
	CheckConfig() error
}

// StatusReporter is implemented by components that appear on the page.
type StatusReporter interface {
	// Status returns a value for encoding/json, such as a list of bins. It is called about once a second while the page
	// is open, and must be fast. ctx limits its duration.
	Status(ctx context.Context) (any, error)
}
