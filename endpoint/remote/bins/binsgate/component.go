// Package binsgate adds the bins of a gateway's NATS server to its status page and metrics, and removes bodies that no
// item references.
//
//	gateway.Options{Components: []gateway.Component{binsgate.New()}}
package binsgate

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rl"
)

const (
	sweepEvery  = 10 * time.Minute
	sweepGrace  = time.Hour // longer than any write takes
	lookTimeout = 2 * time.Second
	// provideEvery is the interval at which the policy is checked for new namespaces.
	provideEvery = time.Second
)

// Component reports and sweeps the bins of a gateway. It serves no requests: clients of bins use NATS directly.
type Component struct {
	conn *nats.Conn
	log  *slog.Logger
	stop context.CancelFunc
	work sync.WaitGroup
}

// New returns a component. It does nothing if the gateway has no NATS server.
func New() *Component { return &Component{stop: func() {}} }

// Name implements gateway.Component.
func (*Component) Name() string { return "bins" }

// Register implements gateway.Component.
func (c *Component) Register(_ context.Context, env *gateway.Env) error {
	if env.NATS == nil {
		return nil
	}
	c.conn, c.log = env.NATS, env.Logger
	if err := env.Metrics.Register(collector{c}); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	c.work.Go(func() { c.sweep(ctx) })
	if env.Scopes != nil {
		c.work.Go(func() { c.provide(ctx, env.Scopes) })
	}
	return nil
}

// Close implements gateway.Component.
func (c *Component) Close(context.Context) error {
	c.stop()
	c.work.Wait()
	return nil
}

// Status implements gateway.StatusReporter. It returns one row for each namespace and queue.
func (c *Component) Status(ctx context.Context) (any, error) {
	if c.conn == nil {
		return []bins.Summary{}, nil
	}
	return bins.Survey(ctx, c.conn)
}

// provide creates the namespaces, queues and training runs of the policy, because clients with scopes may not create
// streams. It follows changes of the policy until ctx ends.
func (c *Component) provide(ctx context.Context, scopes func() []string) {
	made := map[string]bool{}
	for tick := time.NewTicker(provideEvery); ; {
		for _, scope := range scopes() {
			kind, rest, _ := strings.Cut(scope, ".")
			name, _, _ := strings.Cut(rest, ".")
			if name == "" || made[kind+"."+name] {
				continue
			}
			err := c.create(ctx, kind, name)
			if made[kind+"."+name] = err == nil; err != nil && ctx.Err() == nil {
				c.log.Warn("could not create a namespace of the policy", "scope", scope, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
	}
}

func (c *Component) create(ctx context.Context, kind, name string) error {
	switch kind {
	case "queue":
		_, err := bins.SweepQueue(ctx, c.conn, bins.Options{Namespace: name, Logger: c.log}, sweepGrace) // keeps the settings of its pullers
		return err
	case "rl":
		return rl.Create(ctx, rl.Options{Run: name, Conn: c.conn, Logger: c.log})
	}
	_, err := bins.Open(ctx, c.conn, bins.Options{Namespace: name, Logger: c.log})
	return err
}

func (c *Component) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		list, err := bins.Survey(ctx, c.conn)
		for _, each := range list {
			if err != nil {
				break
			}
			opts := bins.Options{Namespace: each.Namespace, Logger: c.log}
			if each.Kind == "queue" {
				_, err = bins.SweepQueue(ctx, c.conn, opts, sweepGrace)
				continue
			}
			var s *bins.Store
			if s, err = bins.Open(ctx, c.conn, opts); err == nil {
				_, err = s.Sweep(ctx, sweepGrace)
			}
		}
		if err != nil && ctx.Err() == nil {
			c.log.Warn("could not remove unreferenced bodies", "error", err)
		}
	}
}

// collector reads the figures at each scrape.
type collector struct{ c *Component }

var (
	itemsDesc = prometheus.NewDesc("sharedtensor_gateway_bins_items", "Items of a namespace of bins or a queue.", []string{"kind", "namespace"}, nil)
	bytesDesc = prometheus.NewDesc("sharedtensor_gateway_bins_bytes", "Bytes of a namespace of bins or a queue.", []string{"kind", "namespace"}, nil)
	limitDesc = prometheus.NewDesc("sharedtensor_gateway_bins_limit_bytes", "Bound of the bytes of a namespace of bins or a queue.",
		[]string{"kind", "namespace"}, nil)
)

// Describe implements prometheus.Collector.
func (collector) Describe(out chan<- *prometheus.Desc) {
	out <- itemsDesc
	out <- bytesDesc
	out <- limitDesc
}

// Collect implements prometheus.Collector. It collects nothing while the server is unavailable.
func (k collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	list, err := bins.Survey(ctx, k.c.conn)
	if err != nil {
		k.c.log.Debug("could not count bins for metrics", "error", err)
		return
	}
	for _, s := range list {
		gauge := func(d *prometheus.Desc, v float64) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, s.Kind, s.Namespace)
		}
		gauge(itemsDesc, float64(s.Items))
		gauge(bytesDesc, float64(s.Bytes+s.Beside))
		gauge(limitDesc, float64(s.Limit))
	}
}
