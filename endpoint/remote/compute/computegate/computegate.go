// Package computegate is the gateway component for remote compute. Each endpoint of the owner with one tensor in and
// one tensor out is available as a model_id.
//
//	gateway.Options{Components: []gateway.Component{computegate.New()}}
package computegate

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Component serves splitlearn.comm.ComputeService. The gRPC server should have the codec of package bulk as an option,
// which avoids copies of elements; streamgate sets it.
type Component struct {
	workers, queue int
	maxStream      gateway.ByteSize
	model          string // for requests without a model_id

	env    *gateway.Env
	server *compute.Server
}

// New returns a component.
func New() *Component { return &Component{workers: 10, queue: 100, maxStream: 2 << 30} }

// Name implements gateway.Component.
func (*Component) Name() string { return "compute" }

// Flags implements gateway.Configurer.
func (c *Component) Flags(set *pflag.FlagSet) {
	set.IntVar(&c.workers, "compute-workers", c.workers, "functions of ComputeService that run at once")
	set.IntVar(&c.queue, "compute-queue", c.queue, "requests that may wait for a worker")
	set.StringVar(&c.model, "compute-default", "", "function of requests for ComputeService without a model_id (default: they are refused)")
	set.Var(&c.maxStream, "compute-max-stream", "largest tensor accepted in chunks for a function")
}

// CheckConfig implements gateway.Configurer.
func (c *Component) CheckConfig() error {
	_, err := compute.NewServer(context.Background(), c.options(nil))
	return err
}

func (c *Component) options(env *gateway.Env) compute.ServerOptions {
	opts := compute.ServerOptions{
		Lookup:  func(context.Context, string) (compute.Function, error) { return nil, compute.ErrNotFound },
		Workers: c.workers, Queue: c.queue, StreamBytes: int64(c.maxStream), PendingBytes: 4 * int64(c.maxStream),
		Default: c.model,
	}
	if env == nil {
		return opts
	}
	opts.Lookup = func(ctx context.Context, name string) (compute.Function, error) { return Lookup(ctx, env, name) }
	opts.Check = func(ctx context.Context) error {
		client, err := env.Owner.Client()
		if err != nil && len(env.Owner.Callers()) > 0 {
			return nil // the program that embeds the gateway provides functions
		}
		if err == nil {
			_, err = client.Ping(ctx)
		}
		return err
	}
	opts.Allow = func(ctx context.Context, model string) error { return env.Allow(ctx, access.Call, model) }
	opts.MessageBytes = env.MaxMessage - 64<<10
	opts.MinRate, opts.NewPool = env.Admission.Rate.Bytes, env.Admission.NewPool
	if dev, lazy := env.Arrivals.(*host.Device); lazy {
		opts.Arrivals = dev
	}
	opts.Stall, opts.Version, opts.Logger = env.Stall, env.Version, env.Logger
	return opts
}

// Lookup returns a function of the gateway's owner or embedding program. Its calls end when the owner disconnects. It fails with
// compute.ErrNotFound, compute.ErrInvalid, or the owner's error.
func Lookup(ctx context.Context, env *gateway.Env, name string) (compute.Function, error) {
	known, _, err := gateway.FindFunction(ctx, env.Owner, name)
	if err != nil {
		return nil, err
	}
	if known == nil {
		return nil, fmt.Errorf("%w: %q", compute.ErrNotFound, name)
	}
	f, err := compute.EndpointFunction(known.Caller, known.EndpointInfo, env.Devices[0])
	if err != nil {
		return nil, err
	}
	return bound{f, f.(compute.Placer), env.Owner}, nil
}

// bound is a function of an owner. Its calls end when the owner disconnects.
type bound struct {
	compute.Function
	compute.Placer
	owner gateway.Owner
}

// Compute implements compute.Function.
func (b bound) Compute(ctx context.Context, in *tensor.Tensor) (*tensor.Tensor, error) {
	ctx, cancel := b.owner.Bind(ctx)
	defer cancel()
	return b.Function.Compute(ctx, in)
}

// Register implements gateway.Component.
func (c *Component) Register(ctx context.Context, env *gateway.Env) error {
	if env.GRPC == nil {
		env.Logger.Info("remote compute is off because gRPC is off")
		return nil
	}
	server, err := compute.NewServer(ctx, c.options(env))
	if err != nil {
		return err
	}
	c.env, c.server = env, server
	server.Register(env.GRPC)
	return env.Metrics.Register(collector{server})
}

// Close implements gateway.Component.
func (c *Component) Close(ctx context.Context) error {
	if c.server == nil {
		return nil
	}
	return c.server.Shutdown(ctx)
}

// HealthServices implements gateway.Checker.
func (*Component) HealthServices() []string { return []string{compute.ServiceName} }

// Check implements gateway.Checker.
func (c *Component) Check(ctx context.Context) error {
	if c.server == nil {
		return nil
	}
	return c.server.Check(ctx)
}

// Status implements gateway.StatusReporter. It returns the figures of each function.
func (c *Component) Status(context.Context) (any, error) {
	rows := make(map[string]compute.Statistics)
	if c.server != nil {
		for _, name := range c.server.Models() {
			rows[name] = c.server.Statistics(name)
		}
	}
	return rows, nil
}

// collector exports the figures of the called functions to Prometheus.
type collector struct{ server *compute.Server }

var (
	requests = desc("requests_total", "Requests to a function.")
	failures = desc("failures_total", "Requests to a function that failed.")
	inFlight = desc("in_flight", "Requests that run or wait.")
	bytesIn  = desc("received_bytes_total", "Elements of arguments, as they travelled.")
	bytesOut = desc("sent_bytes_total", "Elements of results, as they travelled.")
	seconds  = desc("seconds", "What the last thousand requests spent their time on.", "part")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("sharedtensor_gateway_compute_"+name, help, append([]string{"model"}, labels...), nil)
}

// Describe implements prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{requests, failures, inFlight, bytesIn, bytesOut, seconds} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	for _, model := range c.server.Models() {
		s := c.server.Statistics(model)
		for d, v := range map[*prometheus.Desc]uint64{requests: s.Requests, failures: s.Failures, bytesIn: s.BytesIn, bytesOut: s.BytesOut} {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), model)
		}
		ch <- prometheus.MustNewConstMetric(inFlight, prometheus.GaugeValue, float64(s.InFlight), model)
		for part, d := range map[string]compute.Distribution{"queue": s.Queue, "decode": s.Decode, "compute": s.Compute, "encode": s.Encode} {
			quantiles := map[float64]float64{0.5: d.Median / 1000, 0.95: d.P95 / 1000, 0.99: d.P99 / 1000}
			ch <- prometheus.MustNewConstSummary(seconds, uint64(d.Count), d.Mean*float64(d.Count)/1000, quantiles, model, part)
		}
	}
}
