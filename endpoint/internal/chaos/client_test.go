//go:build unix

package chaos

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
	// lanes is the number of concurrent operations in one client.
	lanes = 4
	// maxKept is the maximum number of handles, of watchers and of references that a client keeps. The next one
	// replaces an older one.
	maxKept = 10
	// opTimeout is the maximum duration of an operation whose context is not meant to end. The owner may be stopped or
	// unavailable in that time.
	opTimeout = 60 * time.Second
)

// client is a user of the owner: a process, or a part of the owner's.
type client struct {
	a              assignment
	r              *reporter
	dev            driver.Device
	memory         driver.Device // memory of publications and arguments: dev, or a pool
	gate           sync.RWMutex  // locked for writing while the client is paused
	salts          salts
	base           counts // after the first connection
	durations      [numOperations]atomic.Int64
	report         struct{ ops, cut, away, bytes, offered, followed atomic.Int64 }
	next           atomic.Uint64 // last salt
	reused         atomic.Int64  // reused allocations that were reported
	operationState [lanes]operationState

	mu        sync.Mutex
	c         *endpoint.Client
	handles   []*endpoint.Handle
	watchers  []*watched
	refs      []keptRef
	tasks     []string
	followers []*followed
	pins      []pin
}

// operationState is the current operation of a lane.
type operationState struct {
	mu    sync.Mutex
	what  string
	since time.Time
}

// localIndex is the number of the client in the owner's process.
const localIndex = 100

// startLocal starts a client in the owner's process. It is connected without the socket.
func startLocal(a assignment, r *reporter, dev *host.Device) (*client, error) {
	c := &client{a: a, r: r, dev: dev, memory: newPool(dev)}
	c.a.Role, c.a.Index = "client", localIndex
	err := c.dial(context.Background())
	if err == nil {
		c.begin()
	}
	return c, err
}

// begin starts the operations.
func (c *client) begin() {
	for i := range lanes {
		go c.work(i)
	}
	go c.monitor()
}

// clientMain is the main function of a client.
func clientMain(a assignment, r *reporter, commands func() (command, bool)) error {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	c := &client{a: a, r: r, dev: dev, memory: dev}
	if a.Index%2 == 0 {
		c.memory = newPool(dev)
	}
	if err := c.warm(); err != nil {
		return err
	}
	c.begin()
	r.send(report{Ready: true})
	for {
		what, ok := commands()
		if !ok {
			os.Exit(0) // the parent has ended
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

// warm connects, initializes everything that is kept after its first use, and sets the base counts.
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
	c.base.Goroutines += lanes + 1 // for the goroutines started next
	return nil
}

// dial connects and closes the previous client. Another lane may do the same concurrently.
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
	if c.memory != c.dev {
		reused := driver.Pools().Reused
		to.Reused = reused - c.reused.Swap(reused)
	}
	to.Offered, to.Followed = c.report.offered.Swap(0), c.report.followed.Swap(0)
}

// work runs operations in a loop.
func (c *client) work(number int) {
	w := &lane{client: c, rng: rand.New(rand.NewPCG(c.a.Seed, uint64(c.a.Index)<<32|uint64(c.a.Life)<<8|uint64(number)))}
	for {
		c.gate.RLock()
		op := pick(w.rng)
		d := &c.operationState[number]
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

// monitor reports progress, and operations that hang.
func (c *client) monitor() {
	for range time.Tick(500 * time.Millisecond) {
		var now report
		c.addCounts(&now)
		c.r.send(now)
		for i := range c.operationState {
			d := &c.operationState[i]
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

// lane runs operations, one at a time.
type lane struct {
	*client
	rng     *rand.Rand
	offered bool // the current operation calls an endpoint that workers offer
}

// step runs one operation and checks its error.
func (w *lane) step(op int) {
	c := w.current()
	o := operations[op]
	w.offered = false
	ctx, cancel, short := w.context(op, o.mayBlock)
	defer cancel()
	began := time.Now()
	err := o.do(w, ctx, c)
	w.report.ops.Add(1)
	switch {
	case err == nil:
		if w.offered {
			w.report.offered.Add(1)
		}
		if !short {
			w.durations[op].Store((3*w.durations[op].Load() + int64(time.Since(began))) / 4)
		}
	case errors.Is(err, errFound):
		w.r.fail("%s: %s: %v", w.a, o.name, err)
	case short && isEnd(err):
		w.report.cut.Add(1)
	case errors.Is(err, endpoint.ErrUnavailable):
		w.report.away.Add(1)
	case errors.Is(err, endpoint.ErrClosed) && w.current() != c: // another lane has closed the client
		w.report.away.Add(1)
	case o.expected(err), w.offered && isWorkerError(err):
	default:
		w.r.fail("%s: %s: unexpected error after %v (context %v): %v", w.a, o.name, time.Since(began).Round(time.Millisecond), context.Cause(ctx), err)
	}
}

// errFound marks errors that are never expected.
var errFound = errors.New("FOUND")

func found(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errFound, fmt.Errorf(format, args...))
}

// isEnd reports whether an error is due to the end of a context.
func isEnd(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errNearTheAnswer)
}

var errNearTheAnswer = errors.New("chaos: this context ends near the answer")

// context returns a context for an operation. In two of five cases it ends near the expected answer, by deadline or by
// cancel, and short is true. Otherwise it lasts for opTimeout. If rests is true it always ends early, because the
// operation waits for an event that may not occur.
func (w *lane) context(op int, mayBlock bool) (ctx context.Context, cancel func(), short bool) {
	usual := time.Duration(w.durations[op].Load())
	if mayBlock {
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

// current returns the current client.
func (c *client) current() *endpoint.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.c
}

// salts records the salt of each version.
type salts struct {
	mu   sync.Mutex
	seen map[string]uint64
}

// note records the salt of a version and returns an error if a different one was recorded.
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
