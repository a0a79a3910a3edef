package chaos_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// honest is an honest client and its measurements.
type honest struct {
	// Visits is the number of clients that connected, listed, published a model, attached it and disconnected. Served
	// is the number of visits without an error.
	Visits, Served int
	Errors         []string      // the first errors
	Slowest        time.Duration // slowest ping on a connection made before the attack

	mu     sync.Mutex
	socket string
	dev    driver.Device
	c      *endpoint.Client
	stop   func()
}

// visitLimit is the timeout of a visit.
const visitLimit = 10 * time.Second

// The role of an honest client, which pings and visits between start and stop.
var (
	honestRole  = role[honest]("honest")
	honestOpen  = proctest.NewOp(honestRole, "open", (*honest).open)
	honestStart = proctest.NewOp(honestRole, "start", (*honest).start)
	honestStop  = proctest.NewOp(honestRole, "stop", func(h *honest, _ bool) (*honest, error) {
		h.stop()
		return h, nil
	})
)

// open connects. It also makes a visit, which initializes what stays in use, before the attack.
func (h *honest) open(socket string) (bool, error) {
	dev, err := host.Open()
	if err != nil {
		return false, err
	}
	h.socket, h.dev = socket, dev
	ctx := context.Background()
	h.c, err = endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}, Label: "honest"})
	if err != nil {
		return false, err
	}
	return true, visit(ctx, socket, dev)
}

func (h *honest) start(bool) (bool, error) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { h.ping(ctx) })
	all.Go(func() { h.visit(ctx) })
	h.stop = func() {
		cancel()
		all.Wait()
	}
	return true, nil
}

// ping pings until ctx ends. A ping that ctx interrupts counts with the time until then, because it may have been
// stuck.
func (h *honest) ping(ctx context.Context) {
	for ctx.Err() == nil {
		start := time.Now()
		_, err := h.c.Ping(ctx)
		h.mu.Lock()
		h.Slowest = max(h.Slowest, time.Since(start))
		h.mu.Unlock()
		if ctx.Err() == nil {
			h.fail("ping", err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// visit makes visits until ctx ends.
func (h *honest) visit(ctx context.Context) {
	for ctx.Err() == nil {
		err := visit(ctx, h.socket, h.dev)
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
	if _, err = c.Publish(ctx, name, sd, endpoint.PublishOptions{}); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if _, err = c.List(ctx); err != nil {
		return fmt.Errorf("list: %w", err)
	}
	m, err := c.Acquire(ctx, name, endpoint.AcquireOptions{})
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
