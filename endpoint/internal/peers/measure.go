package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
)

// plan is the amount of work in a run.
type plan struct {
	rounds  int           // turns of every peer in each case
	warm    int           // calls before a measurement
	calls   int           // small calls per turn
	costs   int           // small calls for which allocations and processor time are measured
	callers int           // concurrent callers in the last case
	span    time.Duration // duration of a turn in that case
	sizes   []int64       // of the tensors
	copying int64         // total bytes that a copying peer transfers for each size, at least one call
	passing int           // tensors per turn that are passed as handles
	results []int64       // sizes of the result tensors
	filled  int64         // bytes of results per turn
	only    string        // the case to measure; "" for all
	rivals  bool          // build and measure iceoryx2 too
	models  modelPlan
}

func fullPlan() plan {
	return plan{
		rounds: 20, warm: 500, calls: 500, costs: 20_000, callers: 64, span: 250 * time.Millisecond,
		sizes: []int64{1 << 10, 1 << 20, 1 << 30}, copying: 256 << 20, passing: 50,
		results: []int64{1 << 20, 8 << 20, 64 << 20}, filled: 256 << 20, rivals: true,
		models: modelPlan{bytes: 64 << 20, versions: 50, watchers: 100, switches: 20, clients: 1000, file: 1 << 30, loads: 5},
	}
}

// quickPlan returns a minimal plan, which only tests that everything works.
func quickPlan() plan {
	return plan{
		rounds: 2, warm: 20, calls: 50, costs: 200, callers: 8, span: 20 * time.Millisecond,
		sizes: []int64{1 << 10, 1 << 20}, copying: 4 << 20, passing: 10,
		results: []int64{1 << 20}, filled: 4 << 20,
		models: modelPlan{bytes: 1 << 20, versions: 10, watchers: 5, switches: 3, clients: 20, file: 16 << 20, loads: 1},
	}
}

// smallBytes is the payload of the small call in each direction.
const smallBytes = 64

// subject is a peer with its two processes and its measurements.
type subject struct {
	peer
	server *server
	client client

	calls   []samples // by round
	tensors map[int64][]samples
	rates   []float64     // calls per second with many callers, by round
	allocs  float64       // objects per call, of both processes
	cost    time.Duration // processor time per call, of both processes
	skipped map[int64]string
}

// bench holds all subjects.
type bench struct {
	plan     plan
	subjects []*subject
	dir      string
	memory   *memory

	iceoryx            iceoryx
	spinning, byEvents []samples // its small calls
	results            []*resultFigure
	attach             attachFigure
	models             modelFigures
}

// newBench starts every peer. The caller closes the bench.
func newBench(p plan) (_ *bench, err error) {
	b := &bench{plan: p}
	defer func() {
		if err != nil {
			b.Close()
		}
	}()
	if b.memory, err = newMemory(); err != nil {
		return nil, err
	}
	if b.dir, err = os.MkdirTemp("", "peers"); err != nil {
		return nil, err
	}
	for i, p := range peers() {
		s := &subject{peer: p, tensors: map[int64][]samples{}, skipped: map[int64]string{}}
		b.subjects = append(b.subjects, s)
		socket := filepath.Join(b.dir, strconv.Itoa(i))
		if s.server, err = startServer(p, socket); err != nil {
			return nil, err
		}
		if s.client, err = p.dial(socket, b.plan.callers); err != nil {
			return nil, fmt.Errorf("dial %s: %w", p.name, err)
		}
	}
	return b, nil
}

// Close ends all processes.
func (b *bench) Close() error {
	var all closers
	for _, s := range b.subjects {
		for _, c := range []io.Closer{s.client, s.server} {
			if c != nil && c != (*server)(nil) {
				all = append(all, c)
			}
		}
	}
	if b.memory != nil {
		all = append(all, b.memory)
	}
	err := all.Close()
	os.RemoveAll(b.dir)
	return err
}

// run measures the requested case, or all.
func (b *bench) run(ctx context.Context, progress func(string)) error {
	for _, one := range []struct {
		name    string
		measure func(context.Context, func(string)) error
	}{{"calls", b.allCalls}, {"results", b.allResults}, {"attach", b.allAttaches}, {"arguments", b.allTensors},
		{"publish", b.allPublications}, {"switch", b.allSwitches}, {"clients", b.allClients}, {"load", b.allLoads}} {
		if b.plan.only != "" && b.plan.only != one.name {
			continue
		}
		if err := one.measure(ctx, progress); err != nil {
			return err
		}
	}
	return nil
}

// allCalls measures small calls.
func (b *bench) allCalls(ctx context.Context, progress func(string)) error {
	progress(fmt.Sprintf("%d-byte calls", smallBytes))
	small := b.of(func(s *subject) bool { return !s.onlyTensors })
	if err := small.each(func(s *subject) error { return s.warmUp(ctx, b.plan.warm) }); err != nil {
		return err
	}
	if err := small.rounds(func(s *subject, _ int) error {
		if s.name == "endpoint" {
			if err := b.iceoryxCalls(ctx); err != nil {
				return err
			}
		}
		return s.smallCalls(ctx, b.plan.calls)
	}); err != nil {
		return err
	}
	if err := small.each(func(s *subject) error { return s.countCosts(ctx, b.plan.costs) }); err != nil {
		return err
	}
	progress(fmt.Sprintf("%d callers", b.plan.callers))
	return small.rounds(func(s *subject, _ int) error { return s.manyCallers(ctx, b.plan.callers, b.plan.span) })
}

// iceoryxCalls measures one turn of small calls with iceoryx2, spinning and sleeping.
func (b *bench) iceoryxCalls(ctx context.Context) error {
	if b.iceoryx.path == "" {
		return nil
	}
	for how, to := range map[string]*[]samples{"call-spin": &b.spinning, "call-event": &b.byEvents} {
		turn, err := b.iceoryx.turn(ctx, b.plan.calls, how)
		if err != nil {
			return err
		}
		*to = append(*to, turn)
	}
	return nil
}

// of returns a bench with the selected subjects.
func (b *bench) of(which func(*subject) bool) *bench {
	part := *b
	part.subjects = slices.DeleteFunc(slices.Clone(b.subjects), func(s *subject) bool { return !which(s) })
	return &part
}

// each calls do for every subject.
func (b *bench) each(do func(*subject) error) error {
	for _, s := range b.subjects {
		if err := do(s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// rounds calls do for every subject in every round. Each round starts with another subject.
func (b *bench) rounds(do func(s *subject, round int) error) error {
	for round := range b.plan.rounds {
		first := round % len(b.subjects)
		for _, s := range slices.Concat(b.subjects[first:], b.subjects[:first]) {
			if err := do(s, round); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return nil
}

// smallData is the payload of a small call.
var smallData = bytes.Repeat([]byte{0x5a}, smallBytes)

func (s *subject) smallCall(ctx context.Context) error {
	got, err := s.client.echo(ctx, smallData)
	if err == nil && !bytes.Equal(got, smallData) {
		err = fmt.Errorf("the answer differs from the request (%d bytes)", len(got))
	}
	return err
}

func (s *subject) warmUp(ctx context.Context, n int) error {
	for range n {
		if err := s.smallCall(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *subject) smallCalls(ctx context.Context, n int) error {
	turn := make(samples, n)
	if err := s.warmUp(ctx, n/10); err != nil {
		return err
	}
	for i := range turn {
		start := time.Now()
		if err := s.smallCall(ctx); err != nil {
			return err
		}
		turn[i] = time.Since(start)
	}
	s.calls = append(s.calls, turn)
	return nil
}

// countCosts measures the expense of both processes for n sequential calls.
func (s *subject) countCosts(ctx context.Context, n int) error {
	theirs, err := s.server.spent()
	if err != nil {
		return err
	}
	mine := spent()
	if err := s.warmUp(ctx, n); err != nil {
		return err
	}
	ours := spent().since(mine)
	now, err := s.server.spent()
	if err != nil {
		return err
	}
	theirs = now.since(theirs)
	s.allocs = float64(ours.objects+theirs.objects) / float64(n)
	s.cost = (ours.processor + theirs.processor) / time.Duration(n)
	return nil
}

// manyCallers calls from many goroutines for span.
func (s *subject) manyCallers(ctx context.Context, callers int, span time.Duration) error {
	var wait sync.WaitGroup
	counts, failures := make([]int, callers), make([]error, callers)
	start := time.Now()
	for i := range callers {
		wait.Go(func() {
			for time.Since(start) < span && failures[i] == nil {
				failures[i] = s.smallCall(ctx)
				counts[i]++
			}
		})
	}
	wait.Wait()
	took := time.Since(start)
	total := 0
	for i, err := range failures {
		if err != nil {
			return err
		}
		total += counts[i]
	}
	s.rates = append(s.rates, float64(total)/took.Seconds())
	return nil
}
