//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

const (
	// workers do operations in one client at the same time.
	workers = 4
	// maxKept is how many handles, watchers and references a client keeps of each; the next one puts an older one out.
	maxKept = 10
	// opTimeout is how long an operation may take whose context is not meant to end. An owner may be stopped or away
	// meanwhile.
	opTimeout = 60 * time.Second
)

// client is a process that uses the owner.
type client struct {
	a      assignment
	r      *reporter
	dev    driver.Device
	gate   sync.RWMutex // held for writing while it rests
	salts  salts
	base   counts // after the first connection
	took   [numOperations]atomic.Int64
	report struct{ ops, cut, away, bytes atomic.Int64 }
	next   atomic.Uint64 // salts
	doing  [workers]doing

	mu       sync.Mutex
	c        *endpoint.Client
	handles  []*endpoint.Handle
	watchers []*watched
	refs     []keptRef
	tasks    []string
}

// doing is what a worker does at the moment.
type doing struct {
	mu    sync.Mutex
	what  string
	since time.Time
}

// clientMain is the main function of a client.
func clientMain(a assignment, r *reporter, commands func() (command, bool)) error {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	c := &client{a: a, r: r, dev: dev}
	if err := c.warm(); err != nil {
		return err
	}
	for i := range workers {
		go c.work(i)
	}
	go c.watchOver()
	r.send(report{Ready: true})
	for {
		what, ok := commands()
		if !ok {
			os.Exit(0) // the parent is gone
		}
		done := report{Done: what}
		switch what {
		case pause:
			c.gate.Lock()
			done.Salts = c.salts.take()
		case resume:
			c.gate.Unlock()
		case verify:
			err = c.verify()
		case drop:
			err = c.dropAll()
		}
		if err != nil {
			return err
		}
		c.addCounts(&done)
		r.send(done)
	}
}

// warm connects, uses what keeps something the first time, and counts.
func (c *client) warm() error {
	if err := c.dial(context.Background()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	for range 3 {
		if _, err := c.c.Ping(ctx); err != nil && !errors.Is(err, endpoint.ErrUnavailable) {
			return err
		}
	}
	c.base = count()
	c.base.Rings = 1
	c.base.Goroutines += workers + 1 // those that are to come
	return nil
}

// dial connects anew, and closes the client that there was. Another worker may do the same meanwhile.
func (c *client) dial(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	fresh, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: c.a.Socket, Devices: []driver.Device{c.dev}, Wait: true, Label: c.a.String()})
	if err != nil {
		return err
	}
	c.mu.Lock()
	old := c.c
	c.c = fresh
	c.mu.Unlock()
	if old == nil {
		return nil
	}
	return old.Close()
}

func (c *client) addCounts(to *report) {
	to.Ops, to.Cut, to.Away, to.Bytes = c.report.ops.Swap(0), c.report.cut.Swap(0), c.report.away.Swap(0), c.report.bytes.Swap(0)
}

// work does one operation after the other.
func (c *client) work(number int) {
	w := &worker{client: c, rng: rand.New(rand.NewPCG(c.a.Seed, uint64(c.a.Index)<<32|uint64(c.a.Life)<<8|uint64(number)))}
	for {
		c.gate.RLock()
		op := pick(w.rng)
		d := &c.doing[number]
		d.mu.Lock()
		d.what, d.since = operations[op].name, time.Now()
		d.mu.Unlock()
		w.step(op)
		d.mu.Lock()
		d.since = time.Time{}
		d.mu.Unlock()
		c.gate.RUnlock()
	}
}

// watchOver reports progress, and operations that hang.
func (c *client) watchOver() {
	for range time.Tick(500 * time.Millisecond) {
		var now report
		c.addCounts(&now)
		c.r.send(now)
		for i := range c.doing {
			d := &c.doing[i]
			d.mu.Lock()
			what, since := d.what, d.since
			d.mu.Unlock()
			if !since.IsZero() && time.Since(since) > opTimeout+30*time.Second {
				c.r.fail("%s: HANG: %s takes %v\n%s", c.a, what, time.Since(since).Round(time.Second), stacks())
				return
			}
		}
	}
}

// worker does operations.
type worker struct {
	*client
	rng *rand.Rand
}

// step does one operation and judges its error.
func (w *worker) step(op int) {
	c := w.current()
	o := operations[op]
	ctx, cancel, short := w.context(op, o.rests)
	defer cancel()
	began := time.Now()
	err := o.do(w, ctx, c)
	w.report.ops.Add(1)
	switch {
	case err == nil:
		if !short {
			w.took[op].Store((3*w.took[op].Load() + int64(time.Since(began))) / 4)
		}
	case errors.Is(err, errFound):
		w.r.fail("%s: %s: %v", w.a, o.name, err)
	case short && isEnd(err):
		w.report.cut.Add(1)
	case errors.Is(err, endpoint.ErrUnavailable):
		w.report.away.Add(1)
	case errors.Is(err, endpoint.ErrClosed) && w.current() != c: // another worker has closed the client
		w.report.away.Add(1)
	case o.expected(err):
	default:
		w.r.fail("%s: %s: unexpected error after %v (context %v): %v", w.a, o.name, time.Since(began).Round(time.Millisecond), context.Cause(ctx), err)
	}
}

// errFound marks what is wrong whatever the circumstances.
var errFound = errors.New("FOUND")

func found(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errFound, fmt.Errorf(format, args...))
}

// isEnd reports whether an error says that a context ended.
func isEnd(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errNearTheAnswer)
}

var errNearTheAnswer = errors.New("chaos: this context ends near the answer")

// context is one for an operation. Two of five end about when the answer comes, by deadline or by cancel; the others
// last. One for an operation that rests, because it waits for what may never come, always ends.
func (w *worker) context(op int, rests bool) (ctx context.Context, cancel func(), short bool) {
	usual := time.Duration(w.took[op].Load())
	if rests {
		usual = max(usual, 20*time.Millisecond)
	} else if w.rng.IntN(5) > 1 {
		ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
		return ctx, cancel, false
	}
	share := 0.1 + 1.6*w.rng.Float64()
	if w.rng.IntN(2) == 0 {
		share = 0.8 + 0.4*w.rng.Float64()
	}
	limit := time.Duration(float64(usual) * share)
	if w.rng.IntN(2) == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		return ctx, cancel, true
	}
	ctx, cause := context.WithCancelCause(context.Background())
	timer := time.AfterFunc(limit, func() { cause(errNearTheAnswer) })
	return ctx, func() { timer.Stop(); cause(nil) }, true
}

// current is the client at the moment.
func (c *client) current() *endpoint.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.c
}

// salts remembers which salt each version has.
type salts struct {
	mu   sync.Mutex
	seen map[string]uint64
}

// note compares a version's salt with what was seen of it before.
func (s *salts) note(server, name string, version, salt uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[string]uint64{}
	}
	key := versionKey(server, name, version)
	if old, ok := s.seen[key]; ok && old != salt {
		return found("version %s is %016x and was %016x", key, salt, old)
	}
	s.seen[key] = salt
	return nil
}

func (s *salts) take() map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.seen
	s.seen = nil
	return taken
}
