package keeper_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/endpointtest"
)

// job is the argument of the functions below. Its id is written to a file when its function begins.
type job struct {
	ID   string
	Time time.Duration
}

// registerJobs registers functions that take some time, in each way in which an owner runs functions. server returns the
// server that some of them call.
func registerJobs(r *endpoint.Registry, server func() *endpoint.Server, ran *os.File) error {
	work := func(ctx context.Context, in job) (string, error) {
		if _, err := fmt.Fprintln(ran, in.ID); err != nil {
			return "", err
		}
		select {
		case <-time.After(in.Time):
			return in.ID, nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
	// twice works for half of the time, and then again as a call of another function of its own server.
	twice := func(do func(ctx context.Context, name string, in job) (string, error), name string) func(context.Context, job) (string, error) {
		return func(ctx context.Context, in job) (string, error) {
			in.Time /= 2
			if _, err := work(ctx, in); err != nil {
				return "", err
			}
			got, err := do(ctx, name, job{in.ID + "'", in.Time})
			return strings.TrimSuffix(got, "'"), err
		}
	}
	call := func(ctx context.Context, name string, in job) (string, error) {
		return endpoint.Call[string](ctx, server(), name, in)
	}
	submit := func(ctx context.Context, name string, in job) (string, error) {
		task, err := server().Submit(ctx, name, in)
		if err != nil {
			return "", err
		}
		if _, err := task.Wait(ctx); err != nil {
			return "", err
		}
		var out string
		return out, errors.Join(task.Result(ctx, &out))
	}
	submitted := func(ctx context.Context, name string, in job) (string, error) {
		if _, err := submit(ctx, name, in); err != nil {
			return "", err
		}
		return in.ID, nil
	}
	return errors.Join(
		endpoint.Register(r, "work", work, endpoint.NoCache()),
		endpoint.Register(r, "cached", work, endpoint.Cached()),
		endpoint.Register(r, "serialized", work, endpoint.NoCache(), endpoint.Serialized()),
		endpoint.Register(r, "task", work, endpoint.NoCache(), endpoint.AsTask()),
		endpoint.Register(r, "call of a task", twice(call, "task"), endpoint.NoCache()),
		endpoint.Register(r, "call that submits", twice(submitted, "work"), endpoint.NoCache()),
		endpoint.Register(r, "task of a task", twice(call, "task"), endpoint.NoCache(), endpoint.AsTask()),
		endpoint.Register(r, "task that submits", twice(submitted, "work"), endpoint.NoCache(), endpoint.AsTask()),
		endpoint.RegisterStream(r, "items", func(ctx context.Context, in job) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				in.Time /= 4
				for i := range 4 {
					if i == 0 {
						_, _ = fmt.Fprintln(ran, in.ID)
					}
					select {
					case <-time.After(in.Time):
					case <-ctx.Done():
						yield(0, context.Cause(ctx))
						return
					}
					if !yield(i, nil) {
						return
					}
				}
			}
		}))
}

// replaced describes the ways in which an owner is replaced.
type replaced struct {
	graceful bool // what has begun ends
	next     bool // another owner serves afterwards
	do       func(t *testing.T, p *endpointtest.Process, u user) (rest func())
}

var replacements = map[string]replaced{
	"upgrade": {graceful: true, next: true, do: func(t *testing.T, _ *endpointtest.Process, u user) func() {
		upgradeOwner(t, u, false)
		return func() {}
	}},
	"restart": {graceful: true, next: true, do: func(t *testing.T, p *endpointtest.Process, u user) func() {
		pid := ownerPID(t, u)
		require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
		return func() {
			require.Eventually(t, func() bool { return ended(pid) }, time.Minute, time.Millisecond)
			p.Restart()
		}
	}},
	"stop": {graceful: true, do: func(t *testing.T, _ *endpointtest.Process, u user) func() {
		require.NoError(t, syscall.Kill(ownerPID(t, u), syscall.SIGTERM))
		return func() {}
	}},
	"kill": {next: true, do: func(t *testing.T, p *endpointtest.Process, u user) func() {
		require.NoError(t, syscall.Kill(ownerPID(t, u), syscall.SIGKILL))
		return p.Restart
	}},
}

// inFlight is one piece of work that runs while its owner is replaced.
type inFlight struct {
	kind, id string
	outcome  chan error
	accepted bool                            // the owner has accepted the task; read after the outcome
	late     func(ctx context.Context) error // what the caller does after the replacement has begun; may be nil
}

// wants returns an error unless a result is the id.
func wants(id string) func(got string, err error) error {
	return func(got string, err error) error {
		if err == nil && got != id {
			err = fmt.Errorf("the result is %q, not %q", got, id)
		}
		return err
	}
}

// begin starts one of the kinds of work.
func begin(ctx context.Context, c *endpoint.Client, kind string, n int, takes time.Duration) *inFlight {
	f := &inFlight{kind: kind, id: fmt.Sprintf("%s %d", kind, n), outcome: make(chan error, 1)}
	in := job{f.id, takes}
	result := func(ctx context.Context, task *endpoint.Task) error {
		info, err := task.Wait(ctx)
		if err == nil {
			err = info.Err()
		}
		if err != nil {
			return err
		}
		var got string
		err = task.Result(ctx, &got)
		return wants(f.id)(got, err)
	}
	go func() {
		switch name, later := strings.CutPrefix(kind, "later "); {
		case later:
			task, err := c.Submit(ctx, name, in)
			if err != nil {
				f.outcome <- err
				return
			}
			f.late = func(ctx context.Context) error { return result(ctx, task) }
			f.outcome <- nil
		case strings.HasPrefix(kind, "submitted "):
			task, err := c.Submit(ctx, strings.TrimPrefix(kind, "submitted "), in)
			if f.accepted = err == nil; f.accepted {
				err = result(ctx, task)
			}
			f.outcome <- err
		case kind == "items":
			items := 0
			for _, err := range endpoint.Stream[int](ctx, c, kind, in) {
				if err != nil {
					f.outcome <- err
					return
				}
				items++
			}
			if items != 4 {
				f.outcome <- fmt.Errorf("%d items, not 4", items)
			}
			f.outcome <- nil
		default:
			got, err := endpoint.Call[string](ctx, c, kind, in)
			f.outcome <- wants(f.id)(got, err)
		}
	}()
	return f
}

// What runs while its owner is replaced ends once, with its result, if the owner may end it. Otherwise it fails with
// ErrUnavailable, and at most one attempt has begun. What is begun meanwhile runs at the next owner, or fails and has not run.
func TestWorkOutlivesItsOwner(t *testing.T) {
	repeats := 1
	if n, err := strconv.Atoi(os.Getenv("SHAREDTENSOR_REPLACEMENTS")); err == nil {
		repeats = n
	}
	for way, r := range replacements {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			for n := range repeats {
				testReplaced(t, r, n)
			}
		})
	}
}

var kindsOfWork = []string{
	"work", "cached", "serialized", "task", "call of a task", "call that submits", "task of a task", "task that submits", "items", "offered",
	"submitted work", "submitted cached", "submitted task of a task", "submitted task that submits", "later work", "later task that submits",
}

func testReplaced(t *testing.T, way replaced, n int) {
	const takes = 600 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, _ := startUpgradable(t)
	worker := newUser(t, p)
	offered := endpoint.NewRegistry()
	out, err := os.OpenFile(ranFile(p.Socket), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	require.NoError(t, err)
	defer out.Close()
	require.NoError(t, endpoint.Register(offered, "offered", func(_ context.Context, in job) (string, error) {
		fmt.Fprintln(out, in.ID)
		time.Sleep(in.Time)
		return in.ID, nil
	}, endpoint.NoCache()))
	offer, err := worker.Offer(ctx, offered, endpoint.OfferOptions{})
	require.NoError(t, err)
	defer offer.Close()

	clients := make([]user, len(kindsOfWork))
	for i := range clients {
		clients[i] = newUser(t, p)
	}
	var running []*inFlight
	for i, kind := range kindsOfWork {
		running = append(running, begin(ctx, clients[i].Client, kind, n, takes))
	}
	ran := func() map[string]int {
		text, err := os.ReadFile(ranFile(p.Socket))
		require.NoError(t, err)
		times := map[string]int{}
		for line := range strings.Lines(string(text)) {
			times[strings.TrimSpace(line)]++
		}
		return times
	}
	require.Eventually(t, func() bool {
		times := ran()
		for _, f := range running {
			if times[f.id] == 0 {
				return false
			}
		}
		return true
	}, 30*time.Second, time.Millisecond, "all have begun")

	// Submissions at each moment of the replacement. Without a next owner they do not wait for one.
	limited, end := context.WithTimeout(ctx, 30*time.Second)
	if !way.next {
		limited, end = context.WithTimeout(ctx, time.Second)
	}
	defer end()
	var meanwhile []*inFlight
	var begun sync.WaitGroup
	stop := make(chan struct{})
	submitter := newUser(t, p)
	begun.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			meanwhile = append(meanwhile, begin(limited, submitter.Client, "submitted work", 1000*(n+1)+i, time.Millisecond))
		}
	})
	rest := way.do(t, p, newUser(t, p))
	for _, f := range running {
		if strings.HasPrefix(f.kind, "later ") {
			require.NoError(t, <-f.outcome)
			late := f.late
			go func() { f.outcome <- late(ctx) }()
		}
	}
	time.Sleep(takes / 2)
	rest()
	time.Sleep(takes / 10)
	close(stop)
	begun.Wait()

	for _, f := range running {
		err := <-f.outcome
		times := ran()[f.id]
		switch {
		case way.graceful:
			require.NoError(t, err, f.kind)
			require.Equal(t, 1, times, f.kind)
		default:
			require.LessOrEqual(t, times, 1, f.kind)
			if err != nil && !errors.Is(err, endpoint.ErrStale) { // the next owner does not know the task, and says so
				require.ErrorIs(t, err, endpoint.ErrUnavailable, f.kind)
			}
		}
	}
	for _, f := range meanwhile {
		err := <-f.outcome
		times := ran()[f.id]
		require.LessOrEqual(t, times, 1, f.id)
		switch {
		case err == nil:
			require.Equal(t, 1, times, f.id)
		case way.graceful:
			require.False(t, way.next, "%s: %v", f.id, err)
			require.ErrorIs(t, err, endpoint.ErrUnavailable, f.id)
			if !f.accepted { // the submitter of a task that ran may come too late for its result
				require.Zero(t, times, "%s: %v", f.id, err)
			}
		}
	}
	t.Logf("%d submissions meanwhile", len(meanwhile))
}
