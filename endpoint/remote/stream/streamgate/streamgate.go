// Package streamgate is tensor streams as a component of the gateway: models of the owner are what clients get and put.
//
//	gateway.Options{Components: []gateway.Component{streamgate.New()}}
package streamgate

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Component serves kpu.torch.Service and sharedtensor.stream.v1.TensorStream. Tensors that are to be processed go to
// the endpoint that their metadata names by "endpoint", and come back as they are without it.
type Component struct {
	maxTensor, maxPending gateway.ByteSize

	env    *gateway.Env
	server *stream.Server
	lookup *compute.Endpoints
}

// New returns a component.
func New() *Component { return &Component{maxTensor: 16 << 30, maxPending: 64 << 30} }

// Name implements gateway.Component.
func (*Component) Name() string { return "stream" }

// Flags implements gateway.Configurer.
func (c *Component) Flags(set *pflag.FlagSet) {
	set.Var(&c.maxTensor, "stream-max-tensor", "largest tensor that is taken over gRPC")
	set.Var(&c.maxPending, "stream-max-pending", "memory of all transfers over gRPC that are not complete")
}

// CheckConfig implements gateway.Configurer.
func (c *Component) CheckConfig() error {
	if c.maxTensor <= 0 || c.maxPending < c.maxTensor {
		return fmt.Errorf("--stream-max-pending (%v) has to be at least --stream-max-tensor (%v), and that more than 0", c.maxPending, c.maxTensor)
	}
	return nil
}

// GRPCServerOptions implements gateway.GRPCConfigurer: the codec, of which other services of the server notice nothing.
func (*Component) GRPCServerOptions() []grpc.ServerOption { return bulk.ServerOptions() }

// Register implements gateway.Component.
func (c *Component) Register(_ context.Context, env *gateway.Env) error {
	if env.GRPC == nil {
		env.Logger.Info("gRPC is off, and tensor streams with it")
		return nil
	}
	c.env = env
	c.lookup = &compute.Endpoints{Find: env.Owner.Caller, Device: env.Devices[0]}
	models := &stream.Models{Client: env.Owner.Client, Bind: env.Owner.Bind, CheckWrite: env.CheckWrite, Logger: env.Logger}
	server, err := stream.NewServer(stream.ServerOptions{
		Device: env.Arrivals, Host: env.Devices[0], Source: models, Sink: models, Processor: stream.ProcessorFunc(c.process), Socket: c.socket,
		Limits: stream.Limits{TensorBytes: int64(c.maxTensor), PendingBytes: int64(c.maxPending), Stall: env.Stall}, Logger: env.Logger,
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

// socket is the owner's; empty while there is none.
func (c *Component) socket() string {
	client, err := c.env.Owner.Client()
	if err != nil {
		return ""
	}
	return client.Socket()
}

func (c *Component) process(ctx context.Context, item *stream.Item) (*tensor.Tensor, error) {
	name := item.Metadata["endpoint"]
	if name == "" {
		return stream.Identity.Process(ctx, item)
	}
	f, err := c.lookup.Lookup(ctx, name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.env.Owner.Bind(ctx)
	defer cancel()
	return f.Compute(ctx, item.Tensor)
}
