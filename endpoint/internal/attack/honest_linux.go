package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// honest is the report of an honest client.
type honest struct {
	// Pings is the number of pings on a connection made before the attack. Times are in milliseconds.
	Pings int     `json:"pings"`
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
	// Visits is the number of clients that connected, listed, published a model, attached it and disconnected. Served
	// is the number of visits without an error.
	Visits int `json:"visits"`
	Served int `json:"served"`
	// Errors are the first errors.
	Errors []string `json:"errors,omitempty"`

	mu    sync.Mutex
	times []time.Duration
}

// visitLimit is the timeout of a visit.
const visitLimit = 10 * time.Second

// honestMain is the main function of an honest client. The first line resets its measurements, the second ends it with
// a report.
func honestMain(a assignment, send func(report), next func() bool) error {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: a.Socket, Devices: []driver.Device{dev}, Label: "honest"})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := visit(ctx, a.Socket, dev); err != nil { // the first visit initializes what stays in use, before the attack
		return fmt.Errorf("before the attack: %w", err)
	}
	send(report{Ready: true})
	if !next() {
		return nil
	}
	h := new(honest)
	var all sync.WaitGroup
	all.Go(func() { h.ping(ctx, c) })
	all.Go(func() { h.visit(ctx, a.Socket, dev) })
	next()
	cancel()
	all.Wait()
	h.sum()
	send(report{Honest: h})
	return nil
}

// ping pings until ctx ends. A ping that ctx interrupts counts with the time until then, because it may have been
// stuck.
func (h *honest) ping(ctx context.Context, c *endpoint.Client) {
	for ctx.Err() == nil {
		start := time.Now()
		_, err := c.Ping(ctx)
		took := time.Since(start)
		h.mu.Lock()
		h.times = append(h.times, took)
		h.mu.Unlock()
		if ctx.Err() == nil {
			h.fail("ping", err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// visit makes visits until ctx ends.
func (h *honest) visit(ctx context.Context, socket string, dev driver.Device) {
	for ctx.Err() == nil {
		err := visit(ctx, socket, dev)
		if ctx.Err() != nil {
			return
		}
		h.mu.Lock()
		h.Visits++
		if err == nil {
			h.Served++
		}
		h.mu.Unlock()
		h.fail("visit", err)
		time.Sleep(50 * time.Millisecond)
	}
}

// visit connects a client that publishes, lists, attaches and disconnects.
func visit(ctx context.Context, socket string, dev driver.Device) error {
	ctx, cancel := context.WithTimeout(ctx, visitLimit)
	defer cancel()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}, Label: "visitor"})
	if err != nil {
		return err
	}
	defer c.Close()
	x, err := tensor.Zeros(dev, tensor.Float32, tensor.Shape{64})
	if err != nil {
		return err
	}
	sd := module.NewStateDict()
	if err := sd.Set("x", x); err != nil {
		return err
	}
	name := fmt.Sprintf("visitor-%d", os.Getpid())
	if _, err = c.Publish(ctx, name, sd); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if _, err = c.List(ctx); err != nil {
		return fmt.Errorf("list: %w", err)
	}
	m, err := c.Acquire(ctx, name)
	if err != nil {
		return fmt.Errorf("acquire: %w", err)
	}
	return m.Close()
}

func (h *honest) fail(what string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil && len(h.Errors) < 3 {
		h.Errors = append(h.Errors, what+": "+err.Error())
	}
}

// sum computes the statistics of the times.
func (h *honest) sum() {
	slices.Sort(h.times)
	h.Pings = len(h.times)
	at := func(share float64) float64 {
		if len(h.times) == 0 {
			return 0
		}
		return float64(h.times[int(share*float64(len(h.times)-1))]) / float64(time.Millisecond)
	}
	h.P50, h.P99, h.Max = at(0.5), at(0.99), at(1)
}
