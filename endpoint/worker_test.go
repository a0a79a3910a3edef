package endpoint_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// worker is the state of a child process, as an owner or as a client.
type worker struct {
	dev      driver.Device
	server   *endpoint.Server
	client   *endpoint.Client
	handles  map[string]*endpoint.Handle
	watchers map[string]*endpoint.Watcher
	counts   counters
	refs     map[string]*endpoint.Ref[any]
	touched  *tensor.Tensor
	roles    roles
	open     []*tensor.Tensor // results that are never closed
	drafts   map[string]*endpoint.VersionWriter
}

// newWorker returns the state of a child.
func newWorker() (*worker, error) {
	dev, err := openDevice()
	if err != nil {
		return nil, err
	}
	return &worker{
		dev: dev, handles: map[string]*endpoint.Handle{}, watchers: map[string]*endpoint.Watcher{},
		refs: map[string]*endpoint.Ref[any]{}, drafts: map[string]*endpoint.VersionWriter{},
	}, nil
}

// counters count what the endpoints of a child did.
type counters struct {
	mu sync.Mutex
	of map[string]uint64
}

func (c *counters) add(what string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]uint64{}
	}
	c.of[what]++
	return c.of[what]
}

func (c *counters) get(what string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of[what]
}

// How long tests wait for other processes, and how often they check.
const (
	waitLimit = 20 * time.Second
	tick      = time.Millisecond
)

// promptly limits operations that take milliseconds on an idle machine. It allows for a busy machine and detects waits
// for a time limit, the shortest of which is 10 s.
const promptly = 8 * time.Second

// party is the common interface of owners and clients.
type party interface {
	Publish(ctx context.Context, name string, sd *module.StateDict, opts endpoint.PublishOptions) (uint64, error)
	Withdraw(ctx context.Context, name string) error
	List(ctx context.Context) ([]endpoint.ModelInfo, error)
}

// party returns the owner or the client of a worker.
func (w *worker) party() party {
	if w.server != nil {
		return w.server
	}
	return w.client
}

// check compares every byte of a handle with the content for the seed.
func (w *worker) check(h *endpoint.Handle, m model) error {
	want, err := synthetic(w.dev, m)
	if err != nil {
		return err
	}
	defer want.Close()
	got := h.StateDict()
	if got.Len() != want.Len() {
		return fmt.Errorf("%d tensors, not %d", got.Len(), want.Len())
	}
	for name, t := range want.All() {
		other, ok := got.Get(name)
		if !ok {
			return fmt.Errorf("no tensor %s", name)
		}
		var a, b bytes.Buffer
		if _, err := t.WriteTo(&a); err != nil {
			return err
		}
		if _, err := other.WriteTo(io.Writer(&b)); err != nil {
			return err
		}
		if !bytes.Equal(a.Bytes(), b.Bytes()) {
			return fmt.Errorf("tensor %s differs", name)
		}
	}
	return nil
}
