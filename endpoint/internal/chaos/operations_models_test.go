//go:build unix

package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// watched is a watcher and the events that it has returned.
type watched struct {
	*endpoint.Watcher
	client *endpoint.Client
	names  []string
	last   map[string]endpoint.Event
}

// name returns a name that some process publishes: mostly one of this client's own, sometimes the owner's, sometimes
// one of two that all share.
func (w *lane) name() string {
	switch n := w.rng.IntN(10); {
	case n < 3:
		return fmt.Sprintf("own-%d", w.rng.IntN(3))
	case n < 5:
		return fmt.Sprintf("all-%d", w.rng.IntN(2))
	default:
		return fmt.Sprintf("client-%d-%d", w.rng.IntN(8), w.rng.IntN(2))
	}
}

// myName returns a name that this client may publish.
func (w *lane) myName() string {
	if w.rng.IntN(3) == 0 {
		return fmt.Sprintf("all-%d", w.rng.IntN(2))
	}
	return fmt.Sprintf("client-%d-%d", w.a.Index, w.rng.IntN(2))
}

// checkModel checks the content of a handle.
func (w *lane) checkModel(h *endpoint.Handle) error {
	_, err := w.checkVersion(h.StateDict(), h.ServerID(), h.Name(), h.Version())
	return err
}

func (w *lane) acquire(ctx context.Context, c *endpoint.Client) error {
	h, err := c.Acquire(ctx, w.name(), endpoint.AcquireOptions{})
	if err != nil {
		return err
	}
	err = w.checkModel(h)
	w.mu.Lock()
	w.handles = append(w.handles, h)
	var old *endpoint.Handle
	if len(w.handles) > maxKept {
		old = w.handles[0]
		w.handles = w.handles[1:]
	}
	w.mu.Unlock()
	if old != nil {
		err = errors.Join(err, w.checkModel(old), old.Close())
	}
	return err
}

func (w *lane) acquireShortly(ctx context.Context, c *endpoint.Client) error {
	h, err := c.Acquire(ctx, w.name(), endpoint.AcquireOptions{})
	if err != nil {
		return err
	}
	return errors.Join(w.checkModel(h), h.Close())
}

func (w *lane) acquireVersion(ctx context.Context, c *endpoint.Client) error {
	models, err := c.List(ctx)
	if err != nil || len(models) == 0 {
		return err
	}
	m := models[w.rng.IntN(len(models))]
	if len(m.Versions) == 0 {
		return nil
	}
	v := m.Versions[w.rng.IntN(len(m.Versions))].Version
	h, err := c.Acquire(ctx, m.Name, endpoint.AcquireOptions{Version: v})
	if err != nil {
		return err
	}
	if h.Version() != v || h.Name() != m.Name {
		err = found("got %s version %d instead of %s version %d", h.Name(), h.Version(), m.Name, v)
	}
	return errors.Join(err, w.checkModel(h), h.Close())
}

// takeHandle removes and returns one of the handles, so that no other lane closes it.
func (w *lane) takeHandle() *endpoint.Handle {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.handles) == 0 {
		return nil
	}
	i := w.rng.IntN(len(w.handles))
	h := w.handles[i]
	w.handles = slices.Delete(w.handles, i, i+1)
	return h
}

func (w *lane) checkHandle(context.Context, *endpoint.Client) error {
	h := w.takeHandle()
	if h == nil {
		return nil
	}
	err := w.checkModel(h)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handles = append(w.handles, h)
	return err
}

func (w *lane) closeHandle(context.Context, *endpoint.Client) error {
	h := w.takeHandle()
	if h == nil {
		return nil
	}
	return errors.Join(w.checkModel(h), h.Close())
}

func (w *lane) publish(ctx context.Context, c *endpoint.Client) error {
	salt := mix(w.a.Seed) ^ uint64(w.a.Index)<<48 ^ uint64(w.a.Life)<<32 ^ w.next.Add(1)
	sd, err := makeModel(w.memory, salt)
	if err != nil {
		return err
	}
	defer sd.Close()
	name, server := w.myName(), c.ServerID()
	version, err := c.Publish(ctx, name, sd, endpoint.PublishOptions{})
	if err != nil {
		return err
	}
	if server != "" && server == c.ServerID() {
		return w.salts.note(server, name, version, salt)
	}
	return nil
}

func (w *lane) withdraw(ctx context.Context, c *endpoint.Client) error {
	return c.Withdraw(ctx, w.myName())
}

func (w *lane) list(ctx context.Context, c *endpoint.Client) error {
	_, err := c.List(ctx)
	return err
}

func (w *lane) info(ctx context.Context, c *endpoint.Client) error {
	_, err := c.Info(ctx, w.name())
	return err
}

func (w *lane) manifest(ctx context.Context, c *endpoint.Client) error {
	m, err := c.Manifest(ctx, w.name(), 0)
	if err == nil && len(m.Tensors) == 0 {
		return found("a manifest without tensors")
	}
	return err
}

func (w *lane) watch(ctx context.Context, c *endpoint.Client) error {
	var names []string
	if w.rng.IntN(2) == 0 {
		names = []string{w.name()}
	}
	got, err := c.Watch(ctx, names...)
	if err != nil {
		return err
	}
	var old *watched
	w.mu.Lock()
	w.watchers = append(w.watchers, &watched{Watcher: got, client: c, names: names, last: map[string]endpoint.Event{}})
	if len(w.watchers) > maxKept {
		old = w.watchers[0]
		w.watchers = w.watchers[1:]
	}
	w.mu.Unlock()
	if old != nil {
		return old.Close()
	}
	return nil
}

// takeWatcher removes and returns one of the watchers.
func (w *lane) takeWatcher() *watched {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.watchers) == 0 {
		return nil
	}
	i := w.rng.IntN(len(w.watchers))
	got := w.watchers[i]
	w.watchers = slices.Delete(w.watchers, i, i+1)
	return got
}

func (w *lane) nextEvent(ctx context.Context, _ *endpoint.Client) error {
	got := w.takeWatcher()
	if got == nil {
		return nil
	}
	err := got.next(ctx)
	if errors.Is(err, endpoint.ErrClosed) { // its client is closed
		if w.current() == got.client {
			err = found("the watcher of a client that is open is closed: %w", err)
		}
		return errors.Join(err, got.Close())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watchers = append(w.watchers, got)
	return err
}

// next waits for the next event and checks it.
func (w *watched) next(ctx context.Context) error {
	for e, err := range w.Events(ctx) {
		if err != nil {
			return err
		}
		return w.note(e)
	}
	return nil
}

// note checks and records an event.
func (w *watched) note(e endpoint.Event) error {
	switch e.Kind {
	case endpoint.EventPublished, endpoint.EventWithdrawn:
		if len(w.names) > 0 && !slices.Contains(w.names, e.Name) {
			return found("a watcher of %v was told of %s", w.names, e.Name)
		}
		if last := w.last[e.Name]; sameCatalog(last.Server, e.Server) && e.Version < last.Version {
			return found("of %s version %d came after version %d", e.Name, e.Version, last.Version)
		}
		w.last[e.Name] = e
	case endpoint.EventOverflow:
		return found("too many names")
	}
	return nil
}

func (w *lane) closeWatcher(context.Context, *endpoint.Client) error {
	got := w.takeWatcher()
	if got == nil {
		return nil
	}
	return got.Close()
}
