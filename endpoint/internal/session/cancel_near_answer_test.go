package session_test

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
)

// Requests of every kind that creates state, with contexts that end about when the answer arrives. After a success the
// state works: a watcher and a handle receive the next version, a reference and a task exist, a stream has items. A
// failure leaves nothing at the owner.
func TestClientCancelNearAnswer(t *testing.T) {
	drivertest.Leaks(t)
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "object", func(_ context.Context, n int) (int, error) { return n, nil }, endpoint.Managed()))
	require.NoError(t, endpoint.Register(r, "task", func(ctx context.Context, n int) (int, error) {
		<-ctx.Done()
		return 0, context.Cause(ctx)
	}, endpoint.AsTask()))
	require.NoError(t, endpoint.Register(r, "done", func(_ context.Context, n int) (int, error) { return n, nil }, endpoint.AsTask()))
	require.NoError(t, endpoint.RegisterStream(r, "numbers", func(_ context.Context, n int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for i := range n {
				if !yield(i, nil) {
					return
				}
			}
		}
	}))
	dev := fixture.Device(t)
	// Watches of tasks use much of the limit, and abandoned ones count until the owner has processed the cancel.
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r, Tasks: endpoint.TaskOptions{Capacity: 10_000}, Limits: endpoint.Limits{Subscriptions: 1 << 20}})
	version := uint64(0)
	var objects atomic.Int64 // each call has a separate object
	publish := func(t *testing.T) {
		t.Helper()
		x, err := fixture.Filled(dev, 4, 1)
		require.NoError(t, err)
		sd := module.NewStateDict()
		require.NoError(t, sd.Set("x", x))
		version = fixture.PublishOn(t, s, "m", sd)
	}
	publish(t)
	for _, over := range []bool{true, false} {
		c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), Devices: []driver.Device{dev}, OverSocket: over})
		require.NoError(t, err)
		kinds := map[string]func(t *testing.T, ctx context.Context) (works func(t *testing.T), err error){
			"watch": func(t *testing.T, ctx context.Context) (func(*testing.T), error) {
				w, err := c.Watch(ctx, "m")
				if err != nil {
					return nil, err
				}
				return func(t *testing.T) {
					defer w.Close()
					awaitVersion(t, w, version)
				}, nil
			},
			"acquire": func(t *testing.T, ctx context.Context) (func(*testing.T), error) {
				h, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
				if err != nil {
					return nil, err
				}
				return func(t *testing.T) {
					defer h.Close()
					proctest.Eventually(t, fixture.WaitLimit, "it hears of the newest version", func() bool { return h.Newest() == version })
				}, nil
			},
			"reference": func(t *testing.T, ctx context.Context) (func(*testing.T), error) {
				ref, err := endpoint.CallManaged[int](ctx, c, "object", int(objects.Add(1)))
				if err != nil {
					return nil, err
				}
				return func(t *testing.T) {
					defer ref.Close()
					destroyObject(t, s, ref.ID())
					select {
					case <-ref.Done():
					case <-time.After(fixture.WaitLimit):
						t.Error("the reference does not hear that its object is gone")
					}
				}, nil
			},
			"submit": func(t *testing.T, ctx context.Context) (func(*testing.T), error) {
				info, err := c.Submit(ctx, "task", 1)
				if err != nil {
					return nil, err
				}
				return func(t *testing.T) {
					cancelled, err := info.Cancel(context.Background())
					require.NoError(t, err)
					require.True(t, cancelled)
				}, nil
			},
			"stream": func(t *testing.T, ctx context.Context) (func(*testing.T), error) {
				next := 0
				for n, err := range endpoint.Stream[int](ctx, c, "numbers", 3) {
					if err != nil {
						return nil, err
					}
					assert.Equal(t, next, n)
					next++
				}
				assert.Equal(t, 3, next, "a stream that ends without an error is whole")
				return func(*testing.T) {}, nil
			},
			"watch tasks": func(t *testing.T, ctx context.Context) (func(*testing.T), error) {
				for e, err := range c.WatchTasks(ctx, endpoint.TaskFilter{Endpoint: "done"}) {
					if err != nil {
						return nil, err
					}
					assert.Equal(t, endpoint.TaskListed, e.Kind)
					return func(*testing.T) {}, nil
				}
				t.Error("a watch of tasks ends without an error")
				return nil, context.DeadlineExceeded
			},
		}
		for name, begin := range kinds {
			t.Run(map[bool]string{true: "socket ", false: "near "}[over]+name, func(t *testing.T) {
				_, err := s.Submit(context.Background(), "done", 1) // a task for watches of tasks to list
				require.NoError(t, err)
				usual := tookOf(t, begin)
				// Several at once: the answer to one may be read by another, whose context may end at that moment.
				const atOnce, each = 8, 100
				var works [atOnce][]func(*testing.T)
				var requests sync.WaitGroup
				for i := range works {
					requests.Go(func() {
						for range each {
							ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.Int64N(2*atOnce*int64(usual)+1)))
							work, err := begin(t, ctx)
							cancel()
							if err == nil {
								works[i] = append(works[i], work)
							} else if !errors.Is(err, context.DeadlineExceeded) {
								assert.NoError(t, err)
							}
						}
					})
				}
				requests.Wait()
				publish(t)
				for _, work := range slices.Concat(works[:]...) {
					work(t)
				}
				proctest.Eventually(t, fixture.WaitLimit, "nothing is left at the owner", func() bool {
					info, err := s.ServerInfo(context.Background())
					require.NoError(t, err)
					left := info.Stats.Leases + info.Stats.Objects + info.Stats.TasksRunning + info.Stats.TasksPending + info.Stats.Watchers
					for _, session := range info.Sessions {
						if !session.Self {
							left += session.Requests
						}
					}
					for _, limit := range info.Limits {
						if limit.Name == "leases" { // includes watches of tasks
							left += uint64(limit.Used)
						}
					}
					return left == 0
				})
			})
		}
		require.NoError(t, c.Close())
	}
}

// tookOf returns the duration of a request of a kind.
func tookOf(t *testing.T, begin func(*testing.T, context.Context) (func(*testing.T), error)) time.Duration {
	t.Helper()
	start := time.Now()
	const times = 20
	for range times {
		work, err := begin(t, context.Background())
		require.NoError(t, err)
		defer work(t)
	}
	return time.Since(start) / times
}

// awaitVersion reads a watcher until it reports a version.
func awaitVersion(t *testing.T, w *endpoint.Watcher, version uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), fixture.WaitLimit)
	defer cancel()
	for {
		e, err := fixture.NextEvent(ctx, w)
		require.NoError(t, err, "the watcher does not hear of version %d", version)
		if e.Version == version {
			return
		}
	}
}

// Watchers close while the client of a restarted owner resumes the others. Unrelated requests of the client succeed.
func TestWatcherCloseDuringReconnect(t *testing.T) {
	drivertest.Leaks(t)
	socket := proctest.SocketPath(t)
	open := func() *endpoint.Server {
		s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket})
		require.NoError(t, err)
		go s.Serve(context.Background())
		return s
	}
	s := open()
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket, OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	for range 4 {
		var watchers []*endpoint.Watcher
		for range 100 {
			w, err := c.Watch(context.Background(), "m")
			require.NoError(t, err)
			watchers = append(watchers, w)
		}
		closed := make(chan struct{})
		require.NoError(t, s.Close())
		s = open()
		go func() {
			defer close(closed)
			for _, w := range watchers {
				w.Close()
				time.Sleep(20 * time.Microsecond)
			}
		}()
		for going := true; going; {
			select {
			case <-closed:
				going = false
			default:
			}
			_, err := c.List(context.Background())
			require.NotErrorIs(t, err, endpoint.ErrClosed)
		}
	}
	require.NoError(t, s.Close())
}
