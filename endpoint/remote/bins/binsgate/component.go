// Package binsgate shows the bins of a gateway's NATS server on its page and in its metrics, and removes bodies that no
// item names.
//
//	gateway.Options{Components: []gateway.Component{binsgate.New()}}
package binsgate

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
)

const (
	sweepEvery  = 10 * time.Minute
	sweepGrace  = time.Hour // longer than any write lasts
	lookTimeout = 2 * time.Second
)

// Component is the part of a gateway that looks after bins. It serves nothing: clients of bins speak to NATS.
type Component struct {
	conn *nats.Conn
	log  *slog.Logger
	stop context.CancelFunc
	work sync.WaitGroup
}

// New returns a component. Without NATS in the gateway it does nothing.
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
	return nil
}

// Close implements gateway.Component.
func (c *Component) Close(context.Context) error {
	c.stop()
	c.work.Wait()
	return nil
}

// Status implements gateway.StatusReporter: one row for each namespace and queue.
func (c *Component) Status(ctx context.Context) (any, error) {
	if c.conn == nil {
		return []bins.Summary{}, nil
	}
	return bins.Survey(ctx, c.conn)
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
			if each.Kind != "bins" || each.Beside == 0 || err != nil {
				continue
			}
			var s *bins.Store
			if s, err = bins.Open(ctx, c.conn, bins.Options{Namespace: each.Namespace, Logger: c.log}); err == nil {
				_, err = s.Sweep(ctx, sweepGrace)
			}
		}
		if err != nil && ctx.Err() == nil {
			c.log.Warn("bodies that no item names could not be removed", "error", err)
		}
	}
}

// collector reads the figures when they are asked for.
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

// Collect implements prometheus.Collector. While the server is away there are no figures.
func (k collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	list, err := bins.Survey(ctx, k.c.conn)
	if err != nil {
		k.c.log.Debug("bins could not be counted for metrics", "error", err)
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
