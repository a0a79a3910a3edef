// Package streamgate is the gateway component for tensor streams. Clients get and put models of the owner.
//
//	gateway.Options{Components: []gateway.Component{streamgate.New()}}
package streamgate

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute/computegate"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Component serves kpu.torch.Service and sharedtensor.stream.v1.TensorStream. Tensors to process are passed to the
// endpoint that the metadata key "endpoint" names. Without it they are returned unchanged.
type Component struct {
	maxTensor, maxPending gateway.ByteSize
	generate              bool

	env    *gateway.Env
	server *stream.Server
}

// New returns a component.
func New() *Component { return &Component{maxTensor: 16 << 30, maxPending: 64 << 30} }

// Name implements gateway.Component.
func (*Component) Name() string { return "stream" }

// Flags implements gateway.Configurer.
func (c *Component) Flags(set *pflag.FlagSet) {
	set.BoolVar(&c.generate, "stream-generate", false, "answer requests for tensors that name no model with generated ones of the parameter shape")
	set.Var(&c.maxTensor, "stream-max-tensor", "maximum size of a tensor received over gRPC")
	set.Var(&c.maxPending, "stream-max-pending", "maximum memory of incomplete transfers over gRPC")
}

// CheckConfig implements gateway.Configurer.
func (c *Component) CheckConfig() error {
	if c.maxTensor <= 0 || c.maxPending < c.maxTensor {
		return fmt.Errorf("--stream-max-pending (%v) must be at least --stream-max-tensor (%v), which must be positive", c.maxPending, c.maxTensor)
	}
	return nil
}

// GRPCServerOptions implements gateway.GRPCConfigurer. It sets the codec, which does not affect other services.
func (*Component) GRPCServerOptions() []grpc.ServerOption { return bulk.ServerOptions() }

// Register implements gateway.Component.
func (c *Component) Register(_ context.Context, env *gateway.Env) error {
	if env.GRPC == nil {
		env.Logger.Info("tensor streams are off because gRPC is off")
		return nil
	}
	c.env = env
	models := &stream.Models{
		Client: env.Owner.Client, Bind: env.Owner.Bind, Logger: env.Logger,
		Allow: func(ctx context.Context, right access.Right, model string) error {
			return permission(env.Allow(ctx, right, model))
		},
		Published: func(ctx context.Context, model string, version uint64, bytes int64) {
			env.Audited(ctx, gateway.ChangePublish, "model", model, "version", version, "bytes", bytes, "source", "stream")
		},
	}
	var source stream.Source = models
	if c.generate {
		source = &stream.Generator{Source: models, Device: env.Devices[0]}
	}
	_, lazy := env.Arrivals.(*host.Device)
	server, err := stream.NewServer(stream.ServerOptions{
		CheckWrite: func(ctx context.Context, name string) error { return permission(env.Allow(ctx, access.Publish, name)) }, Eager: !lazy, NewPool: env.Admission.NewPool,
		Device: env.Arrivals, Host: env.Devices[0], Source: source, Sink: models, Processor: stream.ProcessorFunc(c.process), Socket: c.socket,
		Limits: stream.Limits{TensorBytes: int64(c.maxTensor), PendingBytes: int64(c.maxPending), Stall: env.Stall, MinRate: env.Admission.Rate.Bytes}, Logger: env.Logger,
	})
	if err != nil {
		return err
	}
	c.server = server
	server.Register(env.GRPC)
	return env.Metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sharedtensor_gateway_stream_pending_bytes", Help: "Memory of transfers over gRPC that are not complete.",
	}, func() float64 { return float64(server.PendingBytes()) }))
}

// permission converts a refusal to write to an error with a gRPC code.
func permission(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", endpoint.ErrPermission, err)
}

// Close implements gateway.Component.
func (c *Component) Close(context.Context) error {
	if c.server == nil {
		return nil
	}
	return c.server.Close()
}

// HealthServices implements gateway.Checker.
func (*Component) HealthServices() []string { return stream.ServiceNames() }

// Check implements gateway.Checker.
func (c *Component) Check(context.Context) error {
	if c.env == nil {
		return nil
	}
	_, err := c.env.Owner.Client()
	return err
}

// Status implements gateway.StatusReporter.
func (c *Component) Status(context.Context) (any, error) {
	if c.server == nil {
		return map[string]int64{}, nil
	}
	return map[string]int64{"pending_bytes": c.server.PendingBytes()}, nil
}

// socket returns the owner's socket, or an empty string if there is no owner.
func (c *Component) socket() string {
	client, err := c.env.Owner.Client()
	if err != nil {
		return ""
	}
	return client.Socket()
}

// process calls the function of an item for a client with the right to call it.
func (c *Component) process(ctx context.Context, item *stream.Item) (*tensor.Tensor, error) {
	name := item.Metadata["endpoint"]
	if name == "" {
		return stream.Identity.Process(ctx, item)
	}
	if err := c.env.Allow(ctx, access.Call, name); err != nil {
		return nil, permission(err)
	}
	f, err := computegate.Lookup(ctx, c.env, name)
	if err != nil {
		return nil, err
	}
	return f.Compute(ctx, item.Tensor)
}
