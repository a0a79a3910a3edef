package inference

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
)

// Component serves the Open Inference Protocol as a component of the gateway. Use New to create it.
type Component struct {
	name       string
	allowShm   bool
	maxPending gateway.ByteSize

	s *service
}

// New returns a component.
func New() *Component { return &Component{name: platform, maxPending: 4 << 30} }

// Name implements gateway.Component.
func (*Component) Name() string { return "inference" }

// Flags implements gateway.Configurer.
func (c *Component) Flags(set *pflag.FlagSet) {
	set.StringVar(&c.name, "infer-server-name", c.name, "name of the server in the metadata of the Open Inference Protocol")
	set.BoolVar(&c.allowShm, "allow-client-shm", c.allowShm,
		"let clients on this host register shared memory: whoever reaches a loopback listener can then read and write the shared memory of this user")
	set.Var(&c.maxPending, "infer-max-pending", "memory for the inputs of all concurrent inference requests; up to a quarter of it is kept for reuse for ten seconds")
}

// CheckConfig implements gateway.Configurer.
func (c *Component) CheckConfig() error {
	var errs []error
	if c.name == "" {
		errs = append(errs, errors.New("--infer-server-name is empty"))
	}
	if c.maxPending <= 0 {
		errs = append(errs, fmt.Errorf("--infer-max-pending must be more than 0, not %v", c.maxPending))
	}
	return errors.Join(errs...)
}

// GRPCServerOptions implements gateway.GRPCConfigurer. It installs the codec, which does not affect other services of
// the server.
func (*Component) GRPCServerOptions() []grpc.ServerOption { return bulk.ServerOptions() }

// Register implements gateway.Component.
func (c *Component) Register(_ context.Context, env *gateway.Env) error {
	c.s = &service{env: env, name: c.name, shm: c.allowShm, device: env.Devices[0]}
	c.s.memory = newArgumentMemory(c.s.device, int64(c.maxPending)/4)
	c.s.models.owner = env.Owner
	c.s.pending = env.Admission.NewPool(admission.Limits{Bytes: int64(c.maxPending), Setting: "--infer-max-pending"})
	if env.GRPC != nil {
		registerGRPC(env.GRPC, c.s)
	}
	if env.HTTP != nil {
		restService{c.s}.register(env.HTTP)
	}
	return env.Metrics.Register(collector{c.s})
}

// Close implements gateway.Component.
func (c *Component) Close(context.Context) error {
	if c.s == nil {
		return nil
	}
	c.s.regions.close()
	return c.s.memory.close()
}

// HealthServices implements gateway.Checker.
func (*Component) HealthServices() []string { return []string{ServiceName} }

// Check implements gateway.Checker.
func (c *Component) Check(context.Context) error {
	if c.s == nil {
		return nil
	}
	return c.s.ready()
}

// modelStatus is the status of a model on the gateway's page.
type modelStatus struct {
	Success uint64 `json:"success"`
	Fail    uint64 `json:"fail"`
	// Seconds is the mean duration of a request; FunctionSeconds the mean time in the function.
	Seconds         float64 `json:"seconds"`
	FunctionSeconds float64 `json:"function_seconds"`
}

// Status implements gateway.StatusReporter. It returns the figures of each model that was called.
func (c *Component) Status(context.Context) (any, error) {
	rows := make(map[string]modelStatus)
	if c.s == nil {
		return rows, nil
	}
	for _, m := range c.s.models.known() {
		row := modelStatus{Success: m.stats.success.count.Load(), Fail: m.stats.fail.count.Load()}
		if row.Success+row.Fail == 0 {
			continue
		}
		row.Seconds, row.FunctionSeconds = m.stats.success.mean(), m.stats.infer.mean()
		rows[m.name] = row
	}
	return rows, nil
}

// mean returns the mean in seconds; 0 if there are no events.
func (d *duration) mean() float64 {
	n := d.count.Load()
	if n == 0 {
		return 0
	}
	return float64(d.ns.Load()) / float64(n) / 1e9
}

// collector exports the figures of the called models to Prometheus.
type collector struct{ s *service }

var (
	requestsMetric = prometheus.NewDesc("sharedtensor_gateway_inference_requests_total", "Requests for inference.", []string{"model", "outcome"}, nil)
	secondsMetric  = prometheus.NewDesc("sharedtensor_gateway_inference_seconds_total",
		"What requests that succeeded spent their time on.", []string{"model", "part"}, nil)
	pendingMetric = prometheus.NewDesc("sharedtensor_gateway_inference_pending_bytes", "Memory of the inputs of requests that run.", nil, nil)
)

// Describe implements prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- requestsMetric
	ch <- secondsMetric
	ch <- pendingMetric
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(pendingMetric, prometheus.GaugeValue, float64(c.s.pending.Used()))
	for _, m := range c.s.models.known() {
		r := m.stats
		if r.success.count.Load()+r.fail.count.Load() == 0 {
			continue
		}
		for outcome, d := range map[string]*duration{"success": &r.success, "fail": &r.fail} {
			ch <- prometheus.MustNewConstMetric(requestsMetric, prometheus.CounterValue, float64(d.count.Load()), m.name, outcome)
		}
		for part, d := range map[string]*duration{"input": &r.input, "infer": &r.infer, "output": &r.output} {
			ch <- prometheus.MustNewConstMetric(secondsMetric, prometheus.CounterValue, float64(d.ns.Load())/1e9, m.name, part)
		}
	}
}
