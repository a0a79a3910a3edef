package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/change"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// FollowOptions say how a [Follower] takes new versions. The zero value takes each.
type FollowOptions struct {
	// Validate is asked before a version is taken, with its state dict, which it borrows: requests go on with the
	// version before meanwhile. What it returns an error for is refused: the follower stays where it is until a newer
	// version is published. ctx ends when the follower is closed. Nil takes every version.
	Validate func(ctx context.Context, version uint64, sd *module.StateDict) error
}

// FollowStatus is how a [Follower] stands at one moment.
type FollowStatus struct {
	// Version is the version that requests get, and Server the id of the owner that it came from; 0 and empty when the
	// follower was closed.
	Version uint64
	Server  string
	// Refused is why the newest version that came is not in use: Validate refused it, or it could not be attached,
	// which is tried again. Nil where it is in use.
	Refused error
	// Withdrawn reports whether the name was withdrawn. The version that was taken before stays in use.
	Withdrawn bool
	// OwnerLost reports whether there is no connection to an owner: then no newer version can come. The client dials
	// again.
	OwnerLost bool
}

// Follower holds the newest version of a name for the requests of a service. What becomes of it is logged by the
// client's logger: versions that are taken, withdrawn and unmapped at level info, refused ones and the loss of the
// owner as warnings. Its methods are safe for concurrent use.
type Follower struct {
	client *Client
	name   string
	opts   FollowOptions

	ctx   context.Context // ends with Close
	stop  context.CancelCauseFunc
	ended chan struct{} // closed when the following goroutine has ended
	ready chan struct{} // closed when the first version was taken

	current atomic.Pointer[followed] // nil before the first version, and after Close
	unmaps  sync.WaitGroup           // versions that are being unmapped; added to under mu while not over
	log     *slog.Logger

	mu      sync.Mutex
	status  FollowStatus
	changed change.Signal
	over    bool // the following has ended
}

// Follow takes the newest version of a name, and each newer one as it is published, until the follower is closed. It
// waits for the first version, and for an owner, until ctx ends; the following itself does not end with ctx. Requests
// use a version by [Follower.Use] or [Follower.Current], and a version is unmapped when the last of them has ended
// that got it.
//
//	llm, err := client.Follow(ctx, "llm", endpoint.FollowOptions{Validate: check})
//	…
//	err = llm.Use(func(sd *module.StateDict) error { return answer(w, r, sd) })
//
// When the owner goes away the version stays in use; the client dials again, and takes what its successor publishes,
// whatever its number. Errors: the cause of ctx, with the reason why no version was taken; [ErrClosed] for a client
// that is closed; [ErrPermission] and the like where waiting for the owner would be in vain. The caller closes the
// follower.
func (c *Client) Follow(ctx context.Context, name string, opts FollowOptions) (*Follower, error) {
	w, err := c.Watch(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("follow %s: %w", status.Shown(name), err)
	}
	f := &Follower{
		client: c, name: name, opts: opts, ended: make(chan struct{}), ready: make(chan struct{}),
		log: c.opts.Logger.With("name", message.CutText(name, status.MaxShown)),
	}
	f.ctx, f.stop = context.WithCancelCause(context.Background())
	go f.run(w)
	select {
	case <-f.ready:
		return f, nil
	case <-f.ended:
		err = context.Cause(f.ctx)
	case <-ctx.Done():
		err = context.Cause(ctx)
		if refused := f.Status().Refused; refused != nil {
			err = fmt.Errorf("%w; the last that came was refused: %w", err, refused)
		}
	}
	f.Close()
	return nil, fmt.Errorf("follow %s: wait for its first version: %w", status.Shown(name), err)
}

// Current pins the version that is in use, so that it stays mapped until the caller closes the pin. [ErrClosed] when
// the follower was closed.
func (f *Follower) Current() (*Pinned, error) {
	v, err := f.pin()
	if err != nil {
		return nil, err
	}
	return &Pinned{version: v}, nil
}

// pin adds a pin to the version that is in use.
func (f *Follower) pin() (*followed, error) {
	for {
		v := f.current.Load()
		if v == nil {
			return nil, fmt.Errorf("follower of %s: %w", status.Shown(f.name), status.ErrClosed)
		}
		if v.pin() { // else it was superseded since, and there is another one
			return v, nil
		}
	}
}

// Use calls fn with the state dict of the version that is in use, which fn borrows: it stays mapped until fn has
// returned, whatever is published meanwhile. It returns what fn returned, or [ErrClosed] when the follower was
// closed.
func (f *Follower) Use(fn func(sd *module.StateDict) error) error {
	v, err := f.pin()
	if err != nil {
		return err
	}
	defer v.unpin()
	return fn(v.handle.StateDict())
}

// Status is how the follower stands at this moment.
func (f *Follower) Status() FollowStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// Changed returns a channel that is closed when Status next changes; after Close it is closed. Ask for the channel
// first and for the status afterwards: then no change goes unseen. What changes several times meanwhile is seen once.
func (f *Follower) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed.Channel()
}

// Close ends the following and gives the version that is in use back. Requests that have a version keep it until they
// end. It waits for Validate to return. A second Close is nil.
func (f *Follower) Close() error {
	f.stop(status.ErrClosed)
	<-f.ended
	return nil
}

// run follows the name until the follower is closed, or the watcher ends with the client.
func (f *Follower) run(w *Watcher) {
	defer close(f.ended)
	events := make(chan Event)
	go f.watch(w, events)
	defer f.end(w, events)
	var tries retries
	for {
		select {
		case e, more := <-events:
			if !more {
				return
			}
			f.heard(e, &tries)
		case <-tries.due():
			f.take(&tries)
		case <-f.ctx.Done():
			return
		}
	}
}

// end gives back what the follower has, and waits for its goroutines.
func (f *Follower) end(w *Watcher, events <-chan Event) {
	w.Close()
	for range events { // until watch has ended
	}
	f.mu.Lock()
	f.over = true
	f.status = FollowStatus{}
	f.changed.End()
	f.mu.Unlock()
	f.unmaps.Wait()
	if v := f.current.Swap(nil); v != nil {
		v.unpin()
	}
}

// watch passes the watcher's events on.
func (f *Follower) watch(w *Watcher, events chan<- Event) {
	defer close(events)
	for e, err := range w.Events(f.ctx) {
		if err != nil {
			f.stop(err)
			return
		}
		select {
		case events <- e:
		case <-f.ctx.Done():
			return
		}
	}
}

// heard deals with an event of the name or its owner.
func (f *Follower) heard(e Event, tries *retries) {
	switch e.Kind {
	case EventOwnerLost:
		f.log.Warn("the owner of a model that is followed is gone; its version stays in use", "server", e.Server)
		f.set(func(s *FollowStatus) { s.OwnerLost = true })
	case EventOwnerBack:
		f.log.Info("the owner of a model that is followed is back", "server", e.Server)
		f.set(func(s *FollowStatus) { s.OwnerLost = false })
	case EventWithdrawn:
		tries.stop()
		f.log.Info("a model that is followed was withdrawn; its version stays in use", "version", e.Version, "server", e.Server)
		f.set(func(s *FollowStatus) { s.Withdrawn = true })
	case EventPublished:
		tries.begin()
		if f.Status().Withdrawn {
			f.set(func(s *FollowStatus) { s.Withdrawn = false })
		}
		f.take(tries)
	}
}

// take attaches the newest version and puts it in use, unless it is, or was refused.
func (f *Follower) take(tries *retries) {
	ctx, cancel := context.WithTimeout(f.ctx, takeTimeout)
	defer cancel()
	h, err := f.client.Acquire(ctx, f.name)
	switch {
	case err == nil:
		tries.stop()
		f.offer(h, tries)
	case f.ctx.Err() != nil:
	case errors.Is(err, status.ErrNotFound): // withdrawn, or still loading: the watcher is told when it is there
		tries.stop()
	case errors.Is(err, status.ErrUnavailable): // events of the owner say so
		tries.again()
	default:
		tries.again()
		f.log.Warn("a version cannot be attached; it is tried again", "error", err)
		f.set(func(s *FollowStatus) { s.Refused = err })
	}
}

// takeTimeout is how long attaching may take before events are looked at again.
const takeTimeout = 30 * time.Second

// offer puts a version in use that is new and that Validate accepts. It takes the handle.
func (f *Follower) offer(h *Handle, tries *retries) {
	at := versionOf(h)
	if v := f.current.Load(); v != nil && versionOf(v.handle) == at || tries.refused == at {
		h.Close()
		return
	}
	err := f.validate(h)
	switch {
	case err == nil:
		f.put(h)
	case f.ctx.Err() != nil:
		h.Close()
	default:
		h.Close()
		tries.refused = at
		f.log.Warn("a version was refused", "version", at.version, "server", at.server, "error", err)
		f.set(func(s *FollowStatus) { s.Refused = err })
	}
}

// serverVersion names a version: another owner counts anew.
type serverVersion struct {
	server  string
	version uint64
}

func versionOf(h *Handle) serverVersion { return serverVersion{h.ServerID(), h.Version()} }

// validate asks the hook. A panic in it refuses the version: the service goes on with the one that it has.
func (f *Follower) validate(h *Handle) (err error) {
	if f.opts.Validate == nil {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: validate: %v", status.ErrPanic, p)
		}
	}()
	return f.opts.Validate(f.ctx, h.Version(), h.StateDict())
}

// put makes a version the one in use. It takes the handle.
func (f *Follower) put(h *Handle) {
	v := &followed{follower: f, handle: h}
	v.pins.Store(1) // the follower's own
	before := f.current.Swap(v)
	f.log.Info("a version was taken", "version", h.Version(), "server", h.ServerID())
	f.set(func(s *FollowStatus) { s.Version, s.Server, s.Refused = h.Version(), h.ServerID(), nil })
	if before == nil {
		close(f.ready)
	} else {
		before.unpin()
	}
}

// set changes the status and tells those that wait for it.
func (f *Follower) set(change func(*FollowStatus)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.status)
	f.changed.Notify()
}
