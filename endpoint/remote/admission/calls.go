// Package admission decides which clients a gateway serves, and limits the resources that clients of all protocols can
// occupy: bytes in flight, concurrent calls, and the time that slow senders take.
//
// A [Pool] is a budget in bytes. Its users open a [Charge] for the identity of a request, add bytes as they arrive, and
// close the charge when the memory is freed. Announced sizes are never charged. Each identity has a share of the pool,
// so one client cannot use all of it.
//
//	charge := pool.Open(rights.IdentityFrom(ctx))
//	defer charge.Close()
//	if err := charge.Add(int64(len(chunk))); err != nil { … }
//
// A [Meter] ends a transfer whose sender falls below a minimum rate. A [Controller] limits concurrent calls, and
// cancels the calls of revoked identities.
package admission

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// ErrRevoked is the cause of a call's context if the token or certificate of its sender was revoked.
var ErrRevoked = NewError(Unauthenticated, "the token or certificate of this call is no longer accepted")

// recheckEvery is the interval at which running calls are checked for revoked identities.
const recheckEvery = time.Second

// Options holds the limits of a Controller. Zero fields mean the defaults.
type Options struct {
	// Bytes limits the messages of all requests, from their first byte until they are processed. The default is 1 GiB.
	// One identity may use half of it, all read-only identities together 1/32, and unknown clients together 1 MiB.
	Bytes int64
	// Calls limits the concurrent calls. The default is 8,192. One identity may use half of it, and all read-only
	// identities together one eighth.
	Calls int64
	// Rate is the minimum rate of senders.
	Rate Rate
}

// Controller admits the calls of a gateway. Its methods are safe for concurrent use.
type Controller struct {
	// Requests is the budget of messages held in memory until they are processed.
	Requests *Pool
	// Rate is the minimum rate of senders.
	Rate Rate

	slots   *Pool // one unit per call
	uploads *Pool // what calls hold in addition to their messages, for the quota of each identity
	rates   requestRates
	probes  probes

	mu      sync.Mutex
	running map[*Call]struct{}
}

// New returns a controller.
func New(opts Options) *Controller {
	opts.Bytes = cmp.Or(opts.Bytes, 1<<30)
	opts.Calls = cmp.Or(opts.Calls, 8192)
	return &Controller{
		Requests: NewPool(Limits{
			Bytes: opts.Bytes, ReadOnly: max(opts.Bytes/32, min(opts.Bytes, 1<<20)), Anonymous: min(opts.Bytes, 1<<20), Setting: "--max-in-flight",
			Quota: func(q rights.Quota) int64 { return q.InFlight },
		}),
		uploads: NewPool(Limits{Bytes: math.MaxInt64, Share: math.MaxInt64, Anonymous: math.MaxInt64, Quota: func(q rights.Quota) int64 { return q.Uploads }}),
		Rate:    opts.Rate,
		slots:   NewPool(Limits{Bytes: opts.Calls, ReadOnly: max(1, opts.Calls/8)}),
		running: make(map[*Call]struct{}),
	}
}

// NewPool returns a pool for what calls hold in addition to their messages. Charges of read-only and unknown clients
// also count towards their part of Requests, which bounds them over all protocols. Charges of identities with a quota of
// uploads count towards it.
func (c *Controller) NewPool(limits Limits) *Pool {
	p := NewPool(limits)
	p.parent, p.uploads = c.Requests, c.uploads
	if p.limits.Anonymous == 0 {
		p.limits.Anonymous = min(limits.Bytes, c.Requests.limits.Anonymous)
	}
	return p
}

// Call is an admitted call.
type Call struct {
	// Identity is the sender.
	Identity rights.Identity

	controller *Controller
	slot       *Charge
	leave      func() // of an unknown client
	began      time.Time
	valid      func() bool
	cancel     context.CancelCauseFunc
	failing    atomic.Pointer[func(error)]
}

// Enter admits a call or fails with ErrLimit or ErrRate. valid reports whether the sender is still accepted; nil means always.
// When valid returns false, the context ends with ErrRevoked as its cause. The caller calls Leave.
func (c *Controller) Enter(ctx context.Context, id rights.Identity, valid func() bool) (context.Context, *Call, error) {
	if err := c.rates.take(id, time.Now()); err != nil {
		return ctx, nil, err
	}
	slot := c.slots.Open(id)
	if id.Known() && slot.Add(1) != nil {
		slot.Close()
		return ctx, nil, fmt.Errorf("%w: %d calls of this client run at once: try again later", ErrLimit, c.slots.Limit(id))
	}
	call := &Call{Identity: id, controller: c, slot: slot, began: time.Now(), valid: valid}
	ctx, call.cancel = context.WithCancelCause(rights.WithIdentity(ctx, id))
	if !id.Known() {
		call.leave = c.probes.enter(ctx, call)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running[call] = struct{}{}
	return ctx, call, nil
}

// Leave ends the call. Further calls have no effect.
func (call *Call) Leave() {
	call.controller.mu.Lock()
	delete(call.controller.running, call)
	call.controller.mu.Unlock()
	call.slot.Close()
	if call.leave != nil {
		call.leave()
	}
	call.cancel(context.Canceled)
}

// Fail ends the context of the call with err as its cause, after calling the function of OnFail.
func (call *Call) Fail(err error) {
	if f := call.failing.Load(); f != nil {
		(*f)(err)
	}
	call.cancel(err)
}

// OnFail sets a function that Fail calls first, for example to send the error to the client.
func (call *Call) OnFail(f func(error)) { call.failing.Store(&f) }

// Running returns the number of running calls.
func (c *Controller) Running() int64 { return c.slots.Used() }

// Run cancels the calls of revoked identities. It runs until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	tick := time.NewTicker(recheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, call := range c.startedBefore(now.Add(-recheckEvery)) {
				if !call.valid() {
					call.Fail(ErrRevoked)
				}
			}
		}
	}
}

// startedBefore returns the running calls that started before t and have an identity that can be revoked.
func (c *Controller) startedBefore(t time.Time) (calls []*Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for call := range c.running {
		if call.valid != nil && call.began.Before(t) {
			calls = append(calls, call)
		}
	}
	return calls
}
