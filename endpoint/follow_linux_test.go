package endpoint_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
)

// mapped returns the number of shared mappings of this process.
func mapped(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return strings.Count(string(maps), "/memfd:")
}

// dialed returns a client of an owner in another process.
func dialed(t *testing.T, socket string) *endpoint.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*fixture.WaitLimit)
	defer cancel()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{fixture.Device(t)}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// following returns a client of this process that follows a name at an owner in another one.
func following(t *testing.T, socket string, opts endpoint.FollowOptions) (*endpoint.Client, *endpoint.Follower[endpoint.ModelVersion]) {
	t.Helper()
	c := dialed(t, socket)
	ctx, cancel := context.WithTimeout(context.Background(), 4*fixture.WaitLimit)
	defer cancel()
	f, err := c.Follow(ctx, "m", opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return c, f
}

// contents caches the expected contents of models by seed.
type contents struct {
	t  *testing.T
	mu sync.Mutex
	of map[uint64]map[string][]byte
}

// want returns the contents of the model of a seed.
func (c *contents) want(seed uint64) (map[string][]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if of := c.of[seed]; of != nil {
		return of, nil
	}
	sd, err := fixture.Synthetic(fixture.Device(c.t), fixture.Model{Seed: seed})
	if err != nil {
		return nil, err
	}
	defer sd.Close()
	of := map[string][]byte{}
	for name, x := range sd.All() {
		if of[name], err = x.ReadBytes(); err != nil {
			return nil, err
		}
	}
	if c.of == nil {
		c.of = map[uint64]map[string][]byte{}
	}
	c.of[seed] = of
	return of, nil
}

// check compares every byte of a state dict with the model of a seed.
func (c *contents) check(sd *module.StateDict, seed uint64) error {
	want, err := c.want(seed)
	if err != nil {
		return err
	}
	for name, x := range sd.All() {
		got, err := x.ReadBytes()
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want[name]) {
			return fmt.Errorf("%s is not that of seed %d", name, seed)
		}
	}
	return nil
}

func TestFollowerPins(t *testing.T) {
	drivertest.Leaks(t)
	o, socket := fixture.Owner(t)
	o.Publish(fixture.Model{Name: "m", Seed: 1})
	_, f := following(t, socket, endpoint.FollowOptions{})
	all := contents{t: t}
	require.NoError(t, f.Use(func(v endpoint.ModelVersion) error { return all.check(v.StateDict, 1) }))
	one := mapped(t)
	request, err := f.Current()
	require.NoError(t, err)

	o.Publish(fixture.Model{Name: "m", Seed: 2})
	proctest.Eventually(t, fixture.WaitLimit, "version 2 is taken", func() bool { return f.Status().Version == 2 })
	require.NoError(t, f.Use(func(v endpoint.ModelVersion) error { return all.check(v.StateDict, 2) }))
	require.EqualValues(t, 1, request.Version())
	require.NoError(t, all.check(request.Value().StateDict, 1), "a request keeps the version that it began with")
	require.Len(t, o.Models()[0].Versions, 2)

	require.NoError(t, request.Close())
	require.NoError(t, request.Close(), "a second time is nothing")
	proctest.Eventually(t, fixture.WaitLimit, "version 1 is unmapped", func() bool { return mapped(t) == one })
	proctest.Eventually(t, fixture.WaitLimit, "the owner frees it", func() bool { return len(o.Models()[0].Versions) == 1 })
	require.NoError(t, f.Use(func(v endpoint.ModelVersion) error { return all.check(v.StateDict, 2) }))

	o.Withdraw("m")
	proctest.Eventually(t, fixture.WaitLimit, "the withdrawal is told", func() bool { return f.Status().Withdrawn })
	require.NoError(t, f.Use(func(v endpoint.ModelVersion) error { return all.check(v.StateDict, 2) }))
	last, err := f.Current()
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, all.check(last.Value().StateDict, 2), "a request ends later than the follower")
	require.NoError(t, last.Close())
	require.ErrorIs(t, f.Use(func(endpoint.ModelVersion) error { return nil }), endpoint.ErrClosed)
	require.Zero(t, f.Status().Version)
}

func TestFollowerWaits(t *testing.T) {
	drivertest.Leaks(t)
	o, socket := fixture.Owner(t)
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{fixture.Device(t)}})
	require.NoError(t, err)
	defer c.Close()
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err = c.Follow(short, "m", endpoint.FollowOptions{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, `follow "m"`)

	got := make(chan *endpoint.Follower[endpoint.ModelVersion], 1)
	go func() {
		f, err := c.Follow(context.Background(), "m", endpoint.FollowOptions{})
		if err != nil {
			t.Error(err)
		}
		got <- f
	}()
	o.Publish(fixture.Model{Name: "other", Seed: 1})
	o.Publish(fixture.Model{Name: "m", Seed: 2})
	f := <-got
	require.NotNil(t, f)
	defer f.Close()
	all := contents{t: t}
	require.NoError(t, f.Use(func(v endpoint.ModelVersion) error { return all.check(v.StateDict, 2) }))
}

func TestFollowerValidate(t *testing.T) {
	drivertest.Leaks(t)
	o, socket := fixture.Owner(t)
	o.Publish(fixture.Model{Name: "m", Seed: 1})
	errBad := errors.New("the loss is not a number")
	validate := func(_ context.Context, v endpoint.ModelVersion) error {
		switch v.Version {
		case 2:
			return fmt.Errorf("%d tensors: %w", v.StateDict.Len(), errBad)
		case 3:
			panic("a check that is wrong")
		}
		return nil
	}
	_, f := following(t, socket, endpoint.FollowOptions{Validate: validate})
	require.NoError(t, f.Status().Refused)
	one := mapped(t)
	o.Publish(fixture.Model{Name: "m", Seed: 2})
	proctest.Eventually(t, fixture.WaitLimit, "version 2 is refused", func() bool { return errors.Is(f.Status().Refused, errBad) })
	require.EqualValues(t, 1, f.Status().Version)
	o.Publish(fixture.Model{Name: "m", Seed: 3})
	proctest.Eventually(t, fixture.WaitLimit, "version 3 is refused", func() bool { return errors.Is(f.Status().Refused, endpoint.ErrPanic) })
	require.Equal(t, one, mapped(t), "what was refused is unmapped")
	all := contents{t: t}
	require.NoError(t, f.Use(func(v endpoint.ModelVersion) error { return all.check(v.StateDict, 1) }))
	o.Publish(fixture.Model{Name: "m", Seed: 4})
	proctest.Eventually(t, fixture.WaitLimit, "version 4 is taken", func() bool { return f.Status().Version == 4 })
	require.NoError(t, f.Status().Refused)

	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{fixture.Device(t)}})
	require.NoError(t, err)
	defer c.Close()
	validate = func(context.Context, endpoint.ModelVersion) error { return errBad }
	err = nil
	for limit := 50 * time.Millisecond; !errors.Is(err, errBad); limit *= 2 { // on a busy machine the time may end earlier
		require.Less(t, limit, fixture.WaitLimit, "why no version was taken")
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		_, err = c.Follow(ctx, "m", endpoint.FollowOptions{Validate: validate})
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
}

// An owner is killed. The version stays in use until its successor publishes one, with any number.
func TestFollowerReconnects(t *testing.T) {
	drivertest.Leaks(t)
	o, socket := fixture.Owner(t)
	for seed := range uint64(3) {
		o.Publish(fixture.Model{Name: "m", Seed: seed + 1})
	}
	c, f := following(t, socket, endpoint.FollowOptions{})
	require.EqualValues(t, 3, f.Status().Version)
	o.Kill()
	proctest.Eventually(t, fixture.WaitLimit, "the loss is told", func() bool { return f.Status().OwnerLost })
	all := contents{t: t}
	require.NoError(t, f.Use(func(v endpoint.ModelVersion) error { return all.check(v.StateDict, 3) }))

	next := fixture.Start(t)
	next.Serve(socket)
	proctest.Eventually(t, fixture.WaitLimit, "the successor is told", func() bool { return !f.Status().OwnerLost })
	require.NoError(t, f.Use(func(v endpoint.ModelVersion) error { return all.check(v.StateDict, 3) }), "it has not published anything yet")
	next.Publish(fixture.Model{Name: "m", Seed: 9})
	proctest.Eventually(t, fixture.WaitLimit, "its version is taken", func() bool { return f.Status().Version == 1 })
	require.NoError(t, f.Use(func(v endpoint.ModelVersion) error { return all.check(v.StateDict, 9) }))
	proctest.Eventually(t, fixture.WaitLimit, "the old one is unmapped", func() bool { return c.Stats().Handles == 1 })
}

// Every change is signalled by the channel: a missed one hangs the test.
func TestFollowTellsOfChanges(t *testing.T) {
	drivertest.Leaks(t)
	o, socket := fixture.Owner(t)
	o.Publish(fixture.Model{Name: "m", Seed: 1})
	refuseTwo := func(_ context.Context, v endpoint.ModelVersion) error {
		if v.Version == 2 {
			return errors.New("two is not for us")
		}
		return nil
	}
	_, f := following(t, socket, endpoint.FollowOptions{Validate: refuseTwo})
	until := func(what string, holds func(endpoint.FollowStatus) bool) {
		t.Helper()
		limit := fixture.Timeout()
		for {
			changed := f.Changed()
			if holds(f.Status()) {
				return
			}
			select {
			case <-changed:
			case <-limit:
				require.FailNow(t, "not told", what)
			}
		}
	}
	until("version 1", func(s endpoint.FollowStatus) bool { return s.Version == 1 && s.Server != "" })
	o.Publish(fixture.Model{Name: "m", Seed: 2})
	until("the refusal", func(s endpoint.FollowStatus) bool { return s.Version == 1 && s.Refused != nil })
	o.Publish(fixture.Model{Name: "m", Seed: 3})
	until("version 3", func(s endpoint.FollowStatus) bool { return s.Version == 3 && s.Refused == nil })
	o.Withdraw("m")
	until("the withdrawal", func(s endpoint.FollowStatus) bool { return s.Version == 3 && s.Withdrawn })
	o.Publish(fixture.Model{Name: "m", Seed: 4})
	until("version 4", func(s endpoint.FollowStatus) bool { return s.Version == 4 && !s.Withdrawn })
	o.Kill()
	until("the loss of the owner", func(s endpoint.FollowStatus) bool { return s.Version == 4 && s.OwnerLost })
	before := f.Changed()
	require.NoError(t, f.Close())
	<-before
	<-f.Changed()
	require.Equal(t, endpoint.FollowStatus{}, f.Status())
}

// Four workers answer requests while versions change and owners are killed. Each request sees every byte of one version
// from beginning to end, and none fails.
func TestFollowerUnderLoad(t *testing.T) {
	drivertest.Leaks(t)
	o, socket := fixture.Owner(t)
	o.Publish(fixture.Model{Name: "m", Seed: 1})
	c, f := following(t, socket, endpoint.FollowOptions{})
	all := contents{t: t}
	var mu sync.Mutex
	seeds := map[string]uint64{} // maps version n of a server to its seed
	first, err := f.Current()
	require.NoError(t, err)
	seeds[first.ServerID()] = 0
	require.NoError(t, first.Close())

	done := make(chan struct{})
	var workers sync.WaitGroup
	var requests atomic.Int64
	work := func() error {
		p, err := f.Current()
		if err != nil {
			return err
		}
		defer p.Close()
		mu.Lock()
		base, known := seeds[p.ServerID()]
		mu.Unlock()
		if !known {
			return nil // its first version, not recorded yet
		}
		requests.Add(1)
		return all.check(p.Value().StateDict, base+p.Version())
	}
	for range 4 {
		workers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := work(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for owners := range uint64(4) {
		base := 100 * owners
		for n := uint64(1); n <= 12; n++ {
			if owners == 0 && n == 1 {
				continue // published above
			}
			o.Publish(fixture.Model{Name: "m", Seed: base + n})
			if n == 1 {
				proctest.Eventually(t, fixture.WaitLimit, "the successor's version is taken", func() bool { return f.Status().Version == 1 })
				p, err := f.Current()
				require.NoError(t, err)
				mu.Lock()
				seeds[p.ServerID()] = base
				mu.Unlock()
				require.NoError(t, p.Close())
			}
			time.Sleep(2 * time.Millisecond)
		}
		proctest.Eventually(t, fixture.WaitLimit, "the newest version is taken", func() bool { return f.Status().Version == 12 })
		if owners < 3 {
			o.Kill()
			o = fixture.Start(t)
			o.Serve(socket)
		}
	}
	close(done)
	workers.Wait()
	require.Positive(t, requests.Load())
	require.GreaterOrEqual(t, c.Stats().Connections, uint64(4), "three owners were killed")
	proctest.Eventually(t, fixture.WaitLimit, "one version is mapped", func() bool { return len(o.Models()[0].Versions) == 1 })
}

// A closed pin has no tensors even while its version is current, and another pin of the version keeps them.
func TestPinnedStateDictAfterClose(t *testing.T) {
	drivertest.Leaks(t)
	s := fixture.Serve(t, endpoint.ServerOptions{Devices: fixture.DriversOf(fixture.Device(t))})
	sd, err := fixture.Synthetic(fixture.Device(t), fixture.Model{})
	require.NoError(t, err)
	fixture.PublishOn(t, s, "m", sd)
	_, f := following(t, s.Socket(), endpoint.FollowOptions{})
	closed, err := f.Current()
	require.NoError(t, err)
	other, err := f.Current()
	require.NoError(t, err)
	require.Positive(t, closed.Value().StateDict.Len())
	for range 2 {
		require.NoError(t, closed.Close())
		require.Nil(t, closed.Value().StateDict)
	}
	require.Equal(t, f.Status().Version, closed.Version())
	require.Positive(t, other.Value().StateDict.Len())
	require.NoError(t, other.Close())
}

// layers is a prepared value that counts its uses and its end.
type layers struct {
	names  []string
	closed *atomic.Int64
}

func (l *layers) Close() error { l.closed.Add(1); return nil }

// Follow prepares a value once for each version, refuses a version that cannot be prepared, and closes the value before
// the version is unmapped.
func TestFollowPrepares(t *testing.T) {
	drivertest.Leaks(t)
	o, socket := fixture.Owner(t)
	o.Publish(fixture.Model{Name: "m", Seed: 1})
	c := dialed(t, socket)
	var prepared, closed atomic.Int64
	prepare := func(_ context.Context, v endpoint.ModelVersion) (*layers, error) {
		switch prepared.Add(1); v.Version {
		case 2:
			return nil, errors.New("two is not for us")
		case 3:
			panic("a view that is wrong")
		}
		return &layers{names: v.StateDict.Names(), closed: &closed}, nil
	}
	f, err := endpoint.Follow(t.Context(), c, "m", prepare, endpoint.FollowOptions{})
	require.NoError(t, err)
	for range 10 {
		require.NoError(t, f.Use(func(l *layers) error { require.NotEmpty(t, l.names); return nil }))
	}
	require.EqualValues(t, 1, prepared.Load())
	o.Publish(fixture.Model{Name: "m", Seed: 2})
	proctest.Eventually(t, fixture.WaitLimit, "version 2 is refused", func() bool { return f.Status().Refused != nil })
	require.ErrorContains(t, f.Status().Refused, "two is not for us")
	o.Publish(fixture.Model{Name: "m", Seed: 3})
	proctest.Eventually(t, fixture.WaitLimit, "version 3 is refused", func() bool { return errors.Is(f.Status().Refused, endpoint.ErrPanic) })
	require.ErrorContains(t, f.Status().Refused, "prepare")
	require.Zero(t, closed.Load())
	old, err := f.Current()
	require.NoError(t, err)
	o.Publish(fixture.Model{Name: "m", Seed: 4})
	proctest.Eventually(t, fixture.WaitLimit, "version 4 is in use", func() bool { return f.Status().Version == 4 })
	require.Zero(t, closed.Load(), "a request still uses version 1")
	require.NoError(t, old.Close())
	proctest.Eventually(t, fixture.WaitLimit, "the value of version 1 is closed", func() bool { return closed.Load() == 1 })
	require.Nil(t, old.Value())
	require.NoError(t, f.Close())
	require.EqualValues(t, 2, closed.Load())
	require.EqualValues(t, 4, prepared.Load())
}

// Without waiting, requests fail with ErrNotFound until the first version is in use.
func TestFollowNoWait(t *testing.T) {
	drivertest.Leaks(t)
	o, socket := fixture.Owner(t)
	c := dialed(t, socket)
	f, err := c.Follow(t.Context(), "m", endpoint.FollowOptions{NoWait: true})
	require.NoError(t, err)
	err = f.Use(func(endpoint.ModelVersion) error { return nil })
	require.ErrorIs(t, err, endpoint.ErrNotFound)
	require.ErrorContains(t, err, `no version of "m" is in use yet`)
	_, err = f.Current()
	require.ErrorIs(t, err, endpoint.ErrNotFound)
	o.Publish(fixture.Model{Name: "m", Seed: 1})
	proctest.Eventually(t, fixture.WaitLimit, "version 1 is in use", func() bool { return f.Status().Version == 1 })
	all := contents{t: t}
	require.NoError(t, f.Use(func(v endpoint.ModelVersion) error { return all.check(v.StateDict, 1) }))
	require.NoError(t, f.Close())
	require.ErrorIs(t, f.Use(func(endpoint.ModelVersion) error { return nil }), endpoint.ErrClosed)
}

// A follower that refuses older versions keeps its version when a restarted owner counts from 1, and hands it back: a
// reader publishes its mapped memory to the new owner, where the numbers continue.
func TestFollowRefuseOlder(t *testing.T) {
	drivertest.Leaks(t)
	o, socket := fixture.Owner(t)
	for seed := range uint64(3) {
		o.Publish(fixture.Model{Name: "m", Seed: seed + 1})
	}
	c, f := following(t, socket, endpoint.FollowOptions{RefuseOlder: true})
	require.EqualValues(t, 3, f.Status().Version)
	before := f.Status().Server
	o.Kill()
	next := fixture.Start(t)
	next.Serve(socket)
	next.Publish(fixture.Model{Name: "m", Seed: 9})
	proctest.Eventually(t, fixture.WaitLimit, "version 1 is refused", func() bool { return errors.Is(f.Status().Refused, endpoint.ErrOlderVersion) })
	require.EqualValues(t, 3, f.Status().Version)
	all := contents{t: t}
	require.NoError(t, f.Use(func(v endpoint.ModelVersion) error { return all.check(v.StateDict, 3) }))

	pinned, err := f.Current()
	require.NoError(t, err)
	_, err = c.Publish(t.Context(), "m", pinned.Value().StateDict, endpoint.PublishOptions{After: 1<<53 + 1})
	require.ErrorIs(t, err, endpoint.ErrInvalid)
	version, err := c.Publish(t.Context(), "m", pinned.Value().StateDict, endpoint.PublishOptions{After: pinned.Version(), Source: "handed back"})
	require.NoError(t, err)
	require.EqualValues(t, 4, version)
	require.NoError(t, pinned.Close())
	proctest.Eventually(t, fixture.WaitLimit, "version 4 is in use", func() bool { return f.Status().Version == 4 })
	require.NotEqual(t, before, f.Status().Server)
	require.NoError(t, f.Status().Refused)
	require.NoError(t, f.Use(func(v endpoint.ModelVersion) error {
		require.EqualValues(t, 4, v.Version)
		require.Equal(t, f.Status().Server, v.Server)
		require.Equal(t, "handed back", v.Source)
		return all.check(v.StateDict, 3)
	}))
}
