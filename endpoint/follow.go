package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/client"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// ModelVersion is an attached version of a model, as followers pass it to functions.
type ModelVersion struct {
	// Version is its number and Server the id of its owner. Owners number versions independently.
	Version uint64
	Server  string
	// Name is the name that is followed.
	Name string
	// Digest is the result of [module.StateDictDigest] for the whole version, also if a part is followed. It is zero if it is
	// unknown: neither the publishers nor the owner computed it ([FollowOptions.OwnerDigest]).
	Digest module.Digest
	// Source is the origin of the tensors, for people ([PublishOptions]). It may be empty.
	Source string
	// Compatibility is the key of [module.StateDict.Compatibility]. It may be empty.
	Compatibility string
	// StateDict holds the tensors. It is borrowed: functions must not close it.
	StateDict *module.StateDict
}

// lateVersion is the time after which Follow logs that it waits for the first version.
const lateVersion = 2 * time.Second

// FollowOptions configures a [Follower]. The zero value accepts every version.
type FollowOptions struct {
	// Validate checks a version before it is used. It borrows the state dict. Requests continue with the previous
	// version meanwhile. If it returns an error, the version is refused and the follower keeps the previous one until a
	// newer version is published. ctx ends when the follower is closed. Nil accepts every version.
	Validate func(ctx context.Context, v ModelVersion) error
	// Device is the device on which the tensors are required, as in [AcquireOptions]. The owner copies a new version there
	// before it replaces the one in use, so requests never wait for the copy. Nil means where they were published.
	Device driver.Device
	// RefuseOlder refuses a version of another owner with a lower number than the version in use, with
	// [ErrOlderVersion]. An owner that restarts without its models counts from 1 again, unless publishers set
	// [PublishOptions.After]. By default the follower uses what the new owner publishes.
	RefuseOlder bool
	// NoWait makes Follow return at once, also if no owner serves. Until the first version is in use, Use and Current return
	// [ErrNotFound]. An error that waiting cannot resolve, such as [ErrPermission], ends the follower: they return it then.
	NoWait bool
	// Part follows one part of versions that are published in parts ([AcquireOptions.Part]). All parts of a version become
	// current at once, so followers of different parts switch to the same versions, each at its own time.
	Part Part
	// OwnerDigest waits for the digest of the whole version that the owner computes, before the version is used
	// ([PublishOptions.Digests], [ModelVersion].Digest). Requests continue with the previous version meanwhile. A version
	// for which the owner computes none has the digest of its publishers, if they have computed it.
	OwnerDigest bool
}

// FollowStatus is the status of a [Follower] at one moment.
type FollowStatus struct {
	// Version is the version in use and Server the id of its owner. They are 0 and empty after the follower was closed.
	Version uint64
	Server  string
	// Refused is the reason why the newest version is not in use: Validate or prepare refused it, it is older
	// ([ErrOlderVersion]), or it could not be attached, which is retried. It is nil if that version is in use.
	Refused error
	// Withdrawn reports whether the name was withdrawn. The last version stays in use.
	Withdrawn bool
	// OwnerLost reports whether there is no connection to an owner, so that no newer version can arrive. The client
	// reconnects.
	OwnerLost bool
}

// ErrOlderVersion is the reason why [FollowOptions.RefuseOlder] refused a version.
var ErrOlderVersion = errors.New("the version is older than the one in use")

// Follower keeps the newest version of a name attached for the requests of a service, with a value of type T that was
// prepared from it. It logs with the client's logger: accepted, withdrawn and unmapped versions at level info, refused
// versions and the loss of the owner as warnings. Its methods are safe for concurrent use.
type Follower[T any] struct {
	client  *Client
	name    string
	opts    FollowOptions
	prepare func(context.Context, ModelVersion) (T, error)

	ctx   context.Context // cancelled by Close
	stop  context.CancelCauseFunc
	ended chan struct{} // closed when the goroutine of run has returned
	ready chan struct{} // closed when the first version is in use

	current atomic.Pointer[followed[T]] // nil before the first version and after Close
	unmaps  sync.WaitGroup              // versions being unmapped; added to under mu while over is false
	log     *slog.Logger

	mu      sync.Mutex
	status  FollowStatus
	changed client.Signal
	over    bool // run has ended
}

// Follow is [Follow] without a prepared value: requests receive the version itself.
//
//	llm, err := client.Follow(ctx, "llm", endpoint.FollowOptions{Validate: check})
//	…
//	err = llm.Use(func(v endpoint.ModelVersion) error { return answer(w, r, v.StateDict) })
func (c *Client) Follow(ctx context.Context, name string, opts FollowOptions) (*Follower[ModelVersion], error) {
	return Follow(ctx, c, name, func(_ context.Context, v ModelVersion) (ModelVersion, error) { return v, nil }, opts)
}

// Follow attaches the newest version of a name and each newer one that is published, until the follower is closed. m is
// a client, or the server whose function uses the version. Follow waits for an owner and the first version until ctx ends;
// afterwards ctx has no effect.
//
// prepare builds what requests need from a version, such as views of its tensors, once for each version. It runs after
// Validate and borrows the state dict until the version is unmapped. An error refuses the version as an error of
// Validate does. If the value has a method Close() error, the follower calls it before it unmaps the version.
//
// Requests use the value through [Follower.Use] or [Follower.Current]. A superseded version is unmapped when its last
// request has ended. If the owner exits, the version stays in use. The client reconnects and attaches what the new
// owner publishes, whatever its version number, unless [FollowOptions.RefuseOlder] is set.
//
// Errors: the cause of ctx with the reason why no version was attached; [ErrClosed] if the client is closed;
// [ErrPermission] and other errors that waiting cannot resolve. The caller closes the follower.
func Follow[T any](ctx context.Context, m Models, name string, prepare func(ctx context.Context, v ModelVersion) (T, error), opts FollowOptions) (*Follower[T], error) {
	c, err := clientOf(m)
	switch {
	case err != nil:
		return nil, modelError("follow", name, 0, err)
	case prepare == nil:
		return nil, modelError("follow", name, 0, fmt.Errorf("%w: the function prepare is nil", ErrInvalid))
	}
	if err := catalog.CheckName(name); err != nil {
		return nil, modelError("follow", name, 0, fmt.Errorf("%w: %w", status.ErrInvalid, err))
	}
	f := &Follower[T]{
		client: c, name: name, opts: opts, prepare: prepare, ended: make(chan struct{}), ready: make(chan struct{}),
		log: c.opts.Logger.With("name", message.CutText(name, status.MaxShown)),
	}
	f.ctx, f.stop = context.WithCancelCause(context.Background())
	if opts.NoWait {
		go f.begin()
		return f, nil
	}
	w, err := c.watch(ctx, true, name)
	if err != nil {
		return nil, modelError("follow", name, 0, err)
	}
	go f.run(w)
	late := time.AfterFunc(lateVersion, func() { f.log.Warn("a model that is followed has no version yet; waiting") })
	defer late.Stop()
	select {
	case <-f.ready:
		return f, nil
	case <-f.ended:
		err = ended.Cause(f.ctx)
	case <-ctx.Done():
		err = ended.Cause(ctx)
		if refused := f.Status().Refused; refused != nil {
			err = fmt.Errorf("%w; the last version was refused: %w", err, refused)
		}
	}
	f.Close()
	return nil, modelError("follow", name, 0, fmt.Errorf("wait for its first version: %w", err))
}

// Current pins the version in use. It stays mapped until the caller closes the pin. It returns [ErrClosed] if the
// follower was closed, and [ErrNotFound] before the first version ([FollowOptions.NoWait]).
func (f *Follower[T]) Current() (*Pinned[T], error) {
	v, err := f.pin()
	if err != nil {
		return nil, err
	}
	return &Pinned[T]{version: v}, nil
}

// pin adds a pin to the version in use.
func (f *Follower[T]) pin() (*followed[T], error) {
	for {
		v := f.current.Load()
		if v == nil {
			return nil, f.unusedError()
		}
		if v.pin() { // if false, a newer version has replaced it
			return v, nil
		}
	}
}

// Use calls fn with the value of the version in use. fn borrows it: the version stays mapped until fn returns, even if a
// newer one is published. Use returns the error of fn, or that of [Follower.Current].
func (f *Follower[T]) Use(fn func(value T) error) error {
	v, err := f.pin()
	if err != nil {
		return err
	}
	defer v.unpin()
	return fn(v.value)
}

// Status returns the current status of the follower.
func (f *Follower[T]) Status() FollowStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// Changed returns a channel that is closed when Status next changes, or at once if the follower is closed. Get the
// channel before the status to miss no change. Several changes may be reported as one.
func (f *Follower[T]) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed.Channel()
}

// closedError returns the error of a use after Close.
func (f *Follower[T]) closedError() error {
	return status.Closed("the follower of " + status.Shown(f.name))
}

// unusedError returns the reason why no version is in use.
func (f *Follower[T]) unusedError() error {
	if f.ctx.Err() != nil {
		return context.Cause(f.ctx)
	}
	err := fmt.Errorf("%w: no version of %s is in use yet", status.ErrNotFound, status.Shown(f.name))
	if refused := f.Status().Refused; refused != nil {
		err = fmt.Errorf("%w; the last version was refused: %w", err, refused)
	}
	return err
}

// Close stops following and releases the version in use. Requests keep their version until they end. Close waits for
// Validate and prepare to return. A second Close returns nil.
func (f *Follower[T]) Close() error {
	f.stop(f.closedError())
	<-f.ended
	return nil
}

// begin waits for an owner and calls run. An error that waiting cannot resolve ends the follower.
func (f *Follower[T]) begin() {
	if f.client.State() != StateConnected {
		f.set(func(s *FollowStatus) { s.OwnerLost = true })
	}
	w, err := f.client.watch(f.ctx, true, f.name)
	if err == nil {
		if f.Status().OwnerLost {
			f.set(func(s *FollowStatus) { s.OwnerLost = false })
		}
		f.run(w)
		return
	}
	f.stop(err)
	f.finish()
	close(f.ended)
}

// run follows the name until the follower is closed or the watcher ends with the client.
func (f *Follower[T]) run(w *Watcher) {
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
func (f *Follower[T]) end(w *Watcher, events <-chan Event) {
	w.Close()
	for range events { // until watch has returned
	}
	f.finish()
}

// finish releases the version in use. No version is taken afterwards.
func (f *Follower[T]) finish() {
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
func (f *Follower[T]) watch(w *Watcher, events chan<- Event) {
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
func (f *Follower[T]) heard(e Event, tries *retries) {
	switch e.Kind {
	case EventOwnerLost:
		f.log.Warn("the owner of a model that is followed is gone; its version stays in use", "server", e.Server)
		f.set(func(s *FollowStatus) { s.OwnerLost = true })
	case EventOwnerBack:
		f.log.Warn("the owner of a model that is followed is back", "server", e.Server)
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
func (f *Follower[T]) take(tries *retries) {
	limit := takeTimeout
	if f.opts.Device != nil {
		limit = placeTimeout
	}
	ctx, cancel := context.WithTimeout(f.ctx, limit)
	defer cancel()
	h, err := f.client.Acquire(ctx, f.name, AcquireOptions{Device: f.opts.Device, Part: f.opts.Part})
	switch {
	case err == nil:
		tries.stop()
		f.offer(h, tries)
	case f.ctx.Err() != nil:
	case errors.Is(err, status.ErrNotFound): // withdrawn or loading: an event follows when it is published
		tries.stop()
	case errors.Is(err, status.ErrPart): // until another version is published
		tries.stop()
		f.log.Warn("a version has other parts than the one that is followed", "error", err)
		f.set(func(s *FollowStatus) { s.Refused = err })
	case errors.Is(err, status.ErrUnavailable): // events report the owner's return
		tries.again()
	default:
		tries.again()
		f.log.Warn("a version cannot be attached; retrying", "error", err)
		f.set(func(s *FollowStatus) { s.Refused = err })
	}
}

// takeTimeout limits one attempt to attach, so that events are processed meanwhile. placeTimeout is that of an attempt that
// waits for a copy to a device.
const (
	takeTimeout  = 30 * time.Second
	placeTimeout = 10 * time.Minute
)

// offer puts a new version in use if it can be prepared. It takes ownership of the handle.
func (f *Follower[T]) offer(h *Handle, tries *retries) {
	at := versionOf(h)
	before := f.current.Load()
	if before != nil && versionOf(before.handle) == at || tries.refused == at {
		h.Close()
		return
	}
	var value T
	var err error
	if f.opts.RefuseOlder && before != nil && at.version < before.handle.Version() {
		err = fmt.Errorf("%w: version %d of a new owner, version %d is in use", ErrOlderVersion, at.version, before.handle.Version())
	} else {
		value, err = f.build(h)
	}
	switch {
	case err == nil:
		f.put(h, value)
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

// build validates and prepares a version. A panic in it refuses the version, and the service continues with the previous
// one.
func (f *Follower[T]) build(h *Handle) (value T, err error) {
	step := "validate"
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %s: %v", status.ErrPanic, step, p)
		}
	}()
	digest, err := f.digest(h)
	if err != nil {
		return value, err
	}
	v := ModelVersion{Name: f.name, Digest: digest, Version: h.Version(), Server: h.ServerID(), Source: h.lease.Source, Compatibility: h.StateDict().Compatibility(), StateDict: h.StateDict()}
	if f.opts.Validate != nil {
		if err = f.opts.Validate(f.ctx, v); err != nil {
			return value, err
		}
	}
	step = "prepare"
	return f.prepare(f.ctx, v)
}

// digest returns the digest of the whole version; zero if it is unknown.
func (f *Follower[T]) digest(h *Handle) (module.Digest, error) {
	if f.opts.OwnerDigest {
		got, err := digested(f.ctx, f.client.conn, message.Digests{Name: h.Name(), Version: h.Version(), Part: h.lease.Part})
		if err == nil {
			return module.Digest(got.Whole), nil
		}
		if !errors.Is(err, status.ErrNotFound) && !errors.Is(err, errors.ErrUnsupported) {
			return module.Digest{}, err
		}
	}
	return h.Digest(), nil
}

// put puts a version in use. It takes ownership of the handle.
func (f *Follower[T]) put(h *Handle, value T) {
	v := &followed[T]{follower: f, handle: h, value: value}
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
func (f *Follower[T]) set(change func(*FollowStatus)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.status)
	f.changed.Notify()
}

// retries schedules attempts to attach a version after a failure. Pauses double, because the cause, such as missing
// memory or a limit, may disappear without an event.
type retries struct {
	refused serverVersion // the version that was refused last
	pause   time.Duration
	timer   <-chan time.Time
}

const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
)

func (r *retries) begin()                { r.pause = 0 }
func (r *retries) stop()                 { r.pause, r.timer = 0, nil }
func (r *retries) due() <-chan time.Time { return r.timer }

func (r *retries) again() {
	r.pause = min(max(firstRetry, 2*r.pause), lastRetry)
	r.timer = time.After(r.pause)
}
