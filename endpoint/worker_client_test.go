package endpoint_test

import (
	"context"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// Commands of clients: their connection, and what they hold, watch and write.

// dialing describes how a client connects.
type dialing struct {
	Socket string
	Wait   bool          // whether it waits for an owner
	Limit  time.Duration // how long it may take; 0 for opTimeout
	UIDs   []uint32      // other users that may be the owner
}

// dialOp connects a worker. Its result is how long that took, or how long it took to fail.
var dialOp = op("dial", func(w *worker, ctx context.Context, in dialing) (time.Duration, error) {
	ctx, cancel := within(ctx, in.Limit)
	defer cancel()
	return timed(func() (err error) {
		w.client, err = endpoint.Dial(ctx, endpoint.ClientOptions{
			Socket: in.Socket, Devices: []driver.Device{w.dev}, Wait: in.Wait, AllowUIDs: in.UIDs,
		})
		return err
	})
})

// dial connects a worker to an owner.
func (c *child) dial(socket string) {
	c.t.Helper()
	c.dialWith(dialing{Socket: socket})
}

// dialWith is dial with options.
func (c *child) dialWith(d dialing) {
	c.t.Helper()
	dialOp.Must(c.Process, d)
}

// dialError is the error of a connection that has to fail.
func (c *child) dialError(d dialing) error {
	c.t.Helper()
	return failure(c, dialOp, d)
}

// pingOp has a client ping its owner.
var pingOp = op("ping", func(w *worker, ctx context.Context, _ none) (none, error) {
	_, err := w.client.Ping(ctx)
	return none{}, err
})

// ping has a client ping its owner.
func (c *child) ping() {
	c.t.Helper()
	pingOp.Must(c.Process, none{})
}

// pingError is the error of a ping that has to fail.
func (c *child) pingError() error {
	c.t.Helper()
	return failure(c, pingOp, none{})
}

// hangUpOp closes a client.
var hangUpOp = op("hang up", func(w *worker, _ context.Context, _ none) (none, error) {
	return none{}, w.client.Close()
})

// hangUp closes a client.
func (c *child) hangUp() {
	c.t.Helper()
	hangUpOp.Must(c.Process, none{})
}

// acquisition requests a version of a name, which the worker then holds under a key.
type acquisition struct {
	Name, Key string
	Version   uint64
	Limit     time.Duration // how long it may take; 0 for opTimeout
}

// acquired is the acquired version and the id of its server.
type acquired struct {
	Version uint64
	ID      string
}

// acquireOp has a client acquire a version.
var acquireOp = op("acquire", func(w *worker, ctx context.Context, in acquisition) (acquired, error) {
	ctx, cancel := within(ctx, in.Limit)
	defer cancel()
	h, err := w.client.Acquire(ctx, in.Name, endpoint.AcquireOptions{Version: in.Version})
	if err != nil {
		return acquired{}, err
	}
	w.handles[in.Key] = h
	return acquired{h.Version(), h.ServerID()}, nil
})

// acquire has a client acquire a version and hold it.
func (c *child) acquire(in acquisition) acquired {
	c.t.Helper()
	return acquireOp.Must(c.Process, in)
}

// acquireError is the error of an acquisition that has to fail.
func (c *child) acquireError(in acquisition) error {
	c.t.Helper()
	return failure(c, acquireOp, in)
}

// kept is a handle under a key and its expected content.
type kept struct {
	Key   string
	Model model
}

// checkOp compares a held version with a model.
var checkOp = op("check", func(w *worker, _ context.Context, in kept) (none, error) {
	return none{}, w.check(w.handles[in.Key], in.Model)
})

// check compares every byte of what a client holds with the model.
func (c *child) check(key string, m model) {
	c.t.Helper()
	checkOp.Must(c.Process, kept{key, m})
}

// handleInfo describes a handle.
type handleInfo struct {
	State  string
	Newest uint64
	Leased bool
}

// handleOp returns the description of a handle by its key.
var handleOp = op("handle", func(w *worker, _ context.Context, key string) (handleInfo, error) {
	h := w.handles[key]
	return handleInfo{h.State().String(), h.Newest(), h.Leased()}, nil
})

// handle returns the description of a client's handle.
func (c *child) handle(key string) handleInfo {
	c.t.Helper()
	return handleOp.Must(c.Process, key)
}

// releaseOp closes a handle by its key.
var releaseOp = op("release", func(w *worker, _ context.Context, key string) (none, error) {
	return none{}, w.handles[key].Close()
})

// release closes a handle of a client.
func (c *child) release(key string) {
	c.t.Helper()
	releaseOp.Must(c.Process, key)
}

// watchedNames lists the names of a watcher under a key.
type watchedNames struct {
	Key   string
	Names []string // all if empty
}

// watchOp opens a watcher.
var watchOp = op("watch", func(w *worker, ctx context.Context, in watchedNames) (_ none, err error) {
	w.watchers[in.Key], err = w.client.Watch(ctx, in.Names...)
	return none{}, err
})

// watch makes a client watch names, all if there are none.
func (c *child) watch(key string, names ...string) {
	c.t.Helper()
	watchOp.Must(c.Process, watchedNames{key, names})
}

// unwatchOp closes a watcher by its key.
var unwatchOp = op("unwatch", func(w *worker, _ context.Context, key string) (none, error) {
	return none{}, w.watchers[key].Close()
})

// unwatch closes a watcher of a client.
func (c *child) unwatch(key string) {
	c.t.Helper()
	unwatchOp.Must(c.Process, key)
}

// hearing is a wait for an event of a watcher.
type hearing struct {
	Key   string
	Limit time.Duration // how long it may take; 0 for opTimeout
}

// nextOp waits for an event.
var nextOp = op("next", func(w *worker, ctx context.Context, in hearing) (endpoint.Event, error) {
	ctx, cancel := within(ctx, in.Limit)
	defer cancel()
	return nextEvent(ctx, w.watchers[in.Key])
})

// next is the next event of a watcher.
func (c *child) next(key string) endpoint.Event {
	c.t.Helper()
	return nextOp.Must(c.Process, hearing{Key: key})
}

// nextError is the error of a watcher that has no event within a time; 0 for opTimeout.
func (c *child) nextError(key string, limit time.Duration) error {
	c.t.Helper()
	return failure(c, nextOp, hearing{key, limit})
}

// drafted is a version under a key that is written in place.
type drafted struct {
	Key   string
	Model model
}

// draftOp writes a model into a new version, which stays uncommitted.
var draftOp = op("draft", func(w *worker, ctx context.Context, in drafted) (none, error) {
	from, err := synthetic(w.dev, in.Model)
	if err != nil {
		return none{}, err
	}
	defer from.Close()
	draft, err := w.client.NewVersion(ctx, in.Model.Name, specsOf(from))
	if err != nil {
		return none{}, err
	}
	w.drafts[in.Key] = draft
	return none{}, copyAll(draft.StateDict(), from)
})

// draft has a client write a model into a new version, which stays uncommitted.
func (c *child) draft(key string, m model) {
	c.t.Helper()
	draftOp.Must(c.Process, drafted{key, m})
}

// commitOp commits a draft by its key. Its result is the version.
var commitOp = op("commit", func(w *worker, ctx context.Context, key string) (uint64, error) {
	return w.drafts[key].Commit(ctx, endpoint.PublishOptions{})
})

// commit publishes a draft of a client, and returns the version.
func (c *child) commit(key string) uint64 {
	c.t.Helper()
	return commitOp.Must(c.Process, key)
}

// abortOp aborts a draft by its key.
var abortOp = op("abort", func(w *worker, _ context.Context, key string) (none, error) {
	return none{}, w.drafts[key].Abort()
})

// abort aborts a draft of a client.
func (c *child) abort(key string) {
	c.t.Helper()
	abortOp.Must(c.Process, key)
}
