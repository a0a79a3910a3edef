package inference

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
)

// Component serves the Open Inference Protocol as a component of the gateway. Use New to create it.
type Component struct {
	name       string
	allowShm   bool
	maxPending gateway.ByteSize
	batches    []string
	queue      int

	s *service
}

// New returns a component.
func New() *Component { return &Component{name: platform, maxPending: 4 << 30, queue: 1000} }

// Name implements gateway.Component.
func (*Component) Name() string { return "inference" }

// Flags implements gateway.Configurer.
func (c *Component) Flags(set *pflag.FlagSet) {
	set.StringVar(&c.name, "infer-server-name", c.name, "name of the server in the metadata of the Open Inference Protocol")
	set.BoolVar(&c.allowShm, "allow-client-shm", c.allowShm,
		"let clients on this host register shared memory: whoever reaches a loopback listener can then read and write the shared memory of this user")
	set.Var(&c.maxPending, "infer-max-pending", "memory for the inputs of all concurrent inference requests; up to a quarter of it is kept for reuse for ten seconds")
	set.StringSliceVar(&c.batches, "infer-batch", c.batches,
		"join requests of a function into batches of up to MAX rows, each waiting up to DELAY: NAME=MAX/DELAY, or NAME=0 for none (default: as the function declares)")
	set.IntVar(&c.queue, "infer-queue", c.queue, "maximum number of requests of a function that wait for a batch")
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
	if c.queue < 1 {
		errs = append(errs, fmt.Errorf("--infer-queue must be at least 1, not %d", c.queue))
	}
	_, err := c.batchSettings()
	return errors.Join(append(errs, err)...)
}

// batchSettings parses --infer-batch.
func (c *Component) batchSettings() (map[string]batching, error) {
	all := make(map[string]batching)
	for _, text := range c.batches {
		at := strings.LastIndexByte(text, '=')
		size, wait, hasWait := strings.Cut(text[at+1:], "/")
		rows, err := strconv.Atoi(size)
		b := batching{max: rows}
		if err == nil && hasWait {
			b.delay, err = time.ParseDuration(wait)
		}
		if at < 1 || err != nil || b.max < 0 || b.max == 1 || b.delay < 0 {
			return nil, fmt.Errorf("--infer-batch: %q is not NAME=MAX/DELAY, such as embed=8/2ms", text)
		}
		all[text[:at]] = b
	}
	return all, nil
}

// GRPCServerOptions implements gateway.GRPCConfigurer. It installs the codec, which does not affect other services of
// the server.
func (*Component) GRPCServerOptions() []grpc.ServerOption { return bulk.ServerOptions() }

// Register implements gateway.Component.
func (c *Component) Register(_ context.Context, env *gateway.Env) error {
	c.s = &service{env: env, name: c.name, shm: c.allowShm, device: env.Devices[0]}
	c.s.memory = newArgumentMemory(c.s.device, int64(c.maxPending)/4)
	c.s.models.owner = env.Owner
	c.s.models.batches, _ = c.batchSettings() // CheckConfig has reported errors
	c.s.models.queue = c.queue
	c.s.models.allow = func(ctx context.Context, name string) error { return env.Allow(ctx, access.Call, name) }
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
	// Waiting is the number of requests that wait for a batch, and Rows the mean number of rows of a call.
	Waiting int     `json:"waiting"`
	Rows    float64 `json:"rows"`
}

// Status implements gateway.StatusReporter. It returns the figures of each model that was called.
func (c *Component) Status(context.Context) (any, error) {
	rows := make(map[string]modelStatus)
	if c.s == nil {
		return rows, nil
	}
	for _, m := range c.s.models.known() {
		row := modelStatus{Success: m.stats.success.count.Load(), Fail: m.stats.fail.count.Load()}
		if m.batcher != nil {
			row.Waiting = m.batcher.waiting()
		}
		if row.Success+row.Fail+uint64(row.Waiting) == 0 {
			continue
		}
		if _, executions := m.stats.batchMessages(); executions > 0 {
			row.Rows = float64(m.stats.inferences.Load()) / float64(executions)
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
	callsMetric   = prometheus.NewDesc("sharedtensor_gateway_inference_calls_total", "Calls of the function; a batch is one.", []string{"model"}, nil)
	rowsMetric    = prometheus.NewDesc("sharedtensor_gateway_inference_rows_total", "Rows of requests that succeeded.", []string{"model"}, nil)
	waitingMetric = prometheus.NewDesc("sharedtensor_gateway_inference_waiting", "Requests that wait for a batch.", []string{"model"}, nil)
	pendingMetric = prometheus.NewDesc("sharedtensor_gateway_inference_pending_bytes", "Memory of the inputs of requests that run.", nil, nil)
)

// Describe implements prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- requestsMetric
	ch <- secondsMetric
	ch <- pendingMetric
	ch <- callsMetric
	ch <- rowsMetric
	ch <- waitingMetric
	for _, metric := range tritonMetrics {
		ch <- metric.desc
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(pendingMetric, prometheus.GaugeValue, float64(c.s.pending.Used()))
	for _, m := range c.s.models.known() {
		r := m.stats
		if m.batcher != nil {
			ch <- prometheus.MustNewConstMetric(waitingMetric, prometheus.GaugeValue, float64(m.batcher.waiting()), m.name)
		}
		if r.success.count.Load()+r.fail.count.Load() == 0 {
			continue
		}
		_, calls := r.batchMessages()
		collectTriton(ch, m, calls)
		ch <- prometheus.MustNewConstMetric(callsMetric, prometheus.CounterValue, float64(calls), m.name)
		ch <- prometheus.MustNewConstMetric(rowsMetric, prometheus.CounterValue, float64(r.inferences.Load()), m.name)
		for outcome, d := range map[string]*duration{"success": &r.success, "fail": &r.fail} {
			ch <- prometheus.MustNewConstMetric(requestsMetric, prometheus.CounterValue, float64(d.count.Load()), m.name, outcome)
		}
		for part, d := range map[string]*duration{"queue": &r.queue, "input": &r.input, "infer": &r.infer, "output": &r.output} {
			ch <- prometheus.MustNewConstMetric(secondsMetric, prometheus.CounterValue, float64(d.ns.Load())/1e9, m.name, part)
		}
	}
}
