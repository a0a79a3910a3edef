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
	"github.com/sharedtensor/sharedtensor/wire"
)

// worker is what a child process can do, as an owner or as a client.
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
	work     *endpoint.Offer
	open     []*tensor.Tensor // results that nobody closes
	drafts   map[string]*endpoint.VersionWriter
}

// newWorker makes the state of a child.
func newWorker() (*worker, error) {
	dev, err := openDevice()
	if err != nil {
		return nil, err
	}
	return &worker{dev: dev, handles: map[string]*endpoint.Handle{}, watchers: map[string]*endpoint.Watcher{}}, nil
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

// How long tests wait for what another process brings about, and how often they look.
const (
	waitLimit = 20 * time.Second
	tick      = time.Millisecond
)

// promptly is the bound of what takes milliseconds where nothing else runs. A busy machine gets this much; what waits
// for a time limit, of which the shortest is 10 s, is caught.
const promptly = 8 * time.Second

// do carries a command out.
func (w *worker) do(do command) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if do.Millis > 0 {
		ctx, cancel = context.WithTimeout(context.Background(), time.Duration(do.Millis)*time.Millisecond)
		defer cancel()
	}
	switch do.Do {
	case "destroy":
		_, err := w.server.Destroy(ctx, do.Name)
		return answer{}, err
	case "serve", "withdraw", "shutdown", "close server":
		return w.own(ctx, do)
	case "hold", "held", "submit", "take away", "sum of touched", "join", "map":
		return w.call(ctx, do)
	case "open node", "share", "ready", "about", "twice", "where", "burst", "nest", "log", "close node", "dial many", "dial default":
		return w.role(ctx, do)
	case "pages", "serve pages":
		return w.pages(ctx, do)
	case "take offers", "work", "withdraw work":
		return w.offers(ctx, do)
	case "ran":
		return answer{Version: w.counts.get(do.Key)}, nil
	}
	return w.use(ctx, do)
}

// own are the commands of an owner.
func (w *worker) own(ctx context.Context, do command) (a answer, err error) {
	start := time.Now()
	switch do.Do {
	case "serve":
		w.server, err = endpoint.NewServer(endpoint.ServerOptions{Socket: do.Socket, Devices: []driver.Device{w.dev}, Label: do.Name, Registry: testRegistry(w.dev, &w.counts),
			AllowUIDs: do.UIDs, Limits: endpoint.Limits{Wire: wire.Limits{Frame: do.Bytes}}})
		if err != nil {
			return a, err
		}
		server := w.server
		go server.Serve(context.Background())
		a.ID = w.server.ID()
	case "withdraw":
		err = w.server.Withdraw(ctx, do.Name)
	case "shutdown":
		err = w.server.Shutdown(ctx)
	case "close server":
		err = w.server.Close()
	}
	a.Millis = float64(time.Since(start).Microseconds()) / 1000
	return a, err
}

// use are the commands of a client.
func (w *worker) use(ctx context.Context, do command) (a answer, err error) {
	start := time.Now()
	switch do.Do {
	case "dial":
		w.client, err = endpoint.Dial(ctx, endpoint.ClientOptions{Socket: do.Socket, Devices: []driver.Device{w.dev}, Wait: do.Wait, AllowUIDs: do.UIDs})
	case "hang up":
		err = w.client.Close()
	case "ping":
		_, err = w.client.Ping(ctx)
	case "state":
		h := w.handles[do.Key]
		a.State, a.Version, a.Newest, a.Leased = h.State().String(), h.Version(), h.Newest(), h.Leased()
	case "release":
		err = w.handles[do.Key].Close()
	case "offer":
		var sd *module.StateDict
		if sd, err = synthetic(w.dev, do.model()); err == nil {
			a.Version, err = w.client.PublishWith(ctx, do.Name, sd, endpoint.PublishOptions{Digests: do.Digests})
			sd.Close()
		}
	case "draft":
		err = w.draft(ctx, do)
	case "commit":
		a.Version, err = w.drafts[do.Key].Commit(ctx, endpoint.PublishOptions{})
	case "abort":
		err = w.drafts[do.Key].Abort()
	case "take down":
		err = w.client.Withdraw(ctx, do.Name)
	case "list":
		a.Models, err = w.client.List(ctx)
	case "watch":
		w.watchers[do.Key], err = w.client.Watch(ctx, do.Names...)
	case "next":
		var e endpoint.Event
		e, err = nextEvent(ctx, w.watchers[do.Key])
		a.Kind, a.Name, a.Version, a.ID = e.Kind.String(), e.Name, e.Version, e.Server
	case "unwatch":
		err = w.watchers[do.Key].Close()
	default:
		err = fmt.Errorf("no command %q", do.Do)
	}
	a.Millis = float64(time.Since(start).Microseconds()) / 1000
	return a, err
}

// check compares every byte of a handle with what the seed says it must be.
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
