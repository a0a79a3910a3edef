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

// FollowOptions configures a [Follower]. The zero value accepts every version.
type FollowOptions struct {
	// Validate checks a version before it is used. It borrows the state dict. Requests continue with the previous
	// version meanwhile. If it returns an error, the version is refused and the follower keeps the previous one until a
	// newer version is published. ctx ends when the follower is closed. Nil accepts every version.
	Validate func(ctx context.Context, version uint64, sd *module.StateDict) error
}

// FollowStatus is the status of a [Follower] at one moment.
type FollowStatus struct {
	// Version is the version in use and Server the id of its owner. They are 0 and empty after the follower was closed.
	Version uint64
	Server  string
	// Refused is the reason why the newest version is not in use: Validate refused it, or it could not be attached,
	// which is retried. It is nil if that version is in use.
	Refused error
	// Withdrawn reports whether the name was withdrawn. The last version stays in use.
	Withdrawn bool
	// OwnerLost reports whether there is no connection to an owner, so that no newer version can arrive. The client
	// reconnects.
	OwnerLost bool
}

// Follower keeps the newest version of a name attached for the requests of a service. It logs with the client's logger:
// accepted, withdrawn and unmapped versions at level info, refused versions and the loss of the owner as warnings. Its
// methods are safe for concurrent use.
type Follower struct {
	client *Client
	name   string
	opts   FollowOptions

	ctx   context.Context // cancelled by Close
	stop  context.CancelCauseFunc
	ended chan struct{} // closed when the goroutine of run has returned
	ready chan struct{} // closed when the first version is in use

	current atomic.Pointer[followed] // nil before the first version and after Close
	unmaps  sync.WaitGroup           // versions being unmapped; added to under mu while over is false
	log     *slog.Logger

	mu      sync.Mutex
	status  FollowStatus
	changed change.Signal
	over    bool // run has ended
}

// Follow attaches the newest version of a name and each newer one that is published, until the follower is closed. It
// waits for an owner and the first version until ctx ends; afterwards ctx has no effect. Requests use a version through
// [Follower.Use] or [Follower.Current]. A superseded version is unmapped when its last request has ended.
//
//	llm, err := client.Follow(ctx, "llm", endpoint.FollowOptions{Validate: check})
//	…
//	err = llm.Use(func(sd *module.StateDict) error { return answer(w, r, sd) })
//
// If the owner exits, the version stays in use. The client reconnects and attaches what the new owner publishes,
// whatever its version number. Errors: the cause of ctx with the reason why no version was attached; [ErrClosed] if the
// client is closed; [ErrPermission] and other errors that waiting cannot resolve. The caller closes the follower.
func (c *Client) Follow(ctx context.Context, name string, opts FollowOptions) (*Follower, error) {
	w, err := c.watch(ctx, true, name)
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
			err = fmt.Errorf("%w; the last version was refused: %w", err, refused)
		}
	}
	f.Close()
	return nil, fmt.Errorf("follow %s: wait for its first version: %w", status.Shown(name), err)
}

// Current pins the version in use. It stays mapped until the caller closes the pin. It returns [ErrClosed] if the
// follower was closed.
func (f *Follower) Current() (*Pinned, error) {
	v, err := f.pin()
	if err != nil {
		return nil, err
	}
	return &Pinned{version: v}, nil
}

// pin adds a pin to the version in use.
func (f *Follower) pin() (*followed, error) {
	for {
		v := f.current.Load()
		if v == nil {
			return nil, f.closedError()
		}
		if v.pin() { // if false, a newer version has replaced it
			return v, nil
		}
	}
}

// Use calls fn with the state dict of the version in use. fn borrows it: it stays mapped until fn returns, even if a
// newer version is published. Use returns the error of fn, or [ErrClosed] if the follower was closed.
func (f *Follower) Use(fn func(sd *module.StateDict) error) error {
	v, err := f.pin()
	if err != nil {
		return err
	}
	defer v.unpin()
	return fn(v.handle.StateDict())
}

// Status returns the current status of the follower.
func (f *Follower) Status() FollowStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// Changed returns a channel that is closed when Status next changes, or at once if the follower is closed. Get the
// channel before the status to miss no change. Several changes may be reported as one.
func (f *Follower) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed.Channel()
}

// closedError returns the error of a use after Close.
func (f *Follower) closedError() error {
	return status.Closed("the follower of " + status.Shown(f.name))
}

// Close stops following and releases the version in use. Requests keep their version until they end. Close waits for
// Validate to return. A second Close returns nil.
func (f *Follower) Close() error {
	f.stop(f.closedError())
	<-f.ended
	return nil
}

// run follows the name until the follower is closed or the watcher ends with the client.
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

// end releases the follower's versions and waits for its goroutines.
func (f *Follower) end(w *Watcher, events <-chan Event) {
	w.Close()
	for range events { // until watch has returned
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

// watch forwards the watcher's events to events.
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

// heard processes an event of the name or its owner.
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

// take attaches the newest version and puts it in use, unless it is already in use or was refused.
func (f *Follower) take(tries *retries) {
	ctx, cancel := context.WithTimeout(f.ctx, takeTimeout)
	defer cancel()
	h, err := f.client.Acquire(ctx, f.name)
	switch {
	case err == nil:
		tries.stop()
		f.offer(h, tries)
	case f.ctx.Err() != nil:
	case errors.Is(err, status.ErrNotFound): // withdrawn or loading: an event follows when it is published
		tries.stop()
	case errors.Is(err, status.ErrUnavailable): // events report the owner's return
		tries.again()
	default:
		tries.again()
		f.log.Warn("a version cannot be attached; retrying", "error", err)
		f.set(func(s *FollowStatus) { s.Refused = err })
	}
}

// takeTimeout limits one attempt to attach, so that events are processed meanwhile.
const takeTimeout = 30 * time.Second

// offer puts a new version in use if Validate accepts it. It takes ownership of the handle.
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

// serverVersion identifies a version across owners, which number versions independently.
type serverVersion struct {
	server  string
	version uint64
}

func versionOf(h *Handle) serverVersion { return serverVersion{h.ServerID(), h.Version()} }

// validate calls Validate. A panic in it refuses the version, and the service continues with the previous one.
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

// put puts a version in use. It takes ownership of the handle.
func (f *Follower) put(h *Handle) {
	v := &followed{follower: f, handle: h}
	v.pins.Store(1) // the follower's pin
	before := f.current.Swap(v)
	f.log.Info("a version was taken", "version", h.Version(), "server", h.ServerID())
	f.set(func(s *FollowStatus) { s.Version, s.Server, s.Refused = h.Version(), h.ServerID(), nil })
	if before == nil {
		close(f.ready)
	} else {
		before.unpin()
	}
}

// set changes the status and wakes its waiters.
func (f *Follower) set(change func(*FollowStatus)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.status)
	f.changed.Notify()
}
