package task

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConcurrentSubmits(t *testing.T) {
	t.Parallel()
	m := newManager(t, Options[*resource]{Capacity: 2400, Workers: 3})
	var running, most, ran atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 300 {
				_, err := m.Submit(ctx, Spec{}, func(context.Context) (*resource, error) {
					n := running.Add(1)
					for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
					}
					ran.Add(1)
					running.Add(-1)
					return newResource(), nil
				})
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
	tasks := m.List(Filter{})
	require.Len(t, tasks, 2400)
	for _, s := range tasks {
		task, err := m.Get(s.ID)
		require.NoError(t, err)
		require.NoError(t, task.Wait(ctx))
	}
	require.Equal(t, int32(2400), ran.Load())
	require.LessOrEqual(t, most.Load(), int32(3))
}

// All operations run at random on many goroutines. Every result is released exactly once, and no goroutine remains.
func TestEverythingAtOnce(t *testing.T) {
	before := runtime.NumGoroutine()
	m := New(Options[*resource]{
		Workers: 3, Capacity: 40, Retain: 10, Release: (*resource).release,
	})
	var mu sync.Mutex
	var made []*resource
	failure := errors.New("failed")
	var fn func(rng *rand.Rand) func(context.Context) (*resource, error)
	fn = func(rng *rand.Rand) func(context.Context) (*resource, error) {
		dice, seed := rng.IntN(10), rng.Uint64()
		return func(inner context.Context) (*resource, error) {
			Report(inner, 1, 2, "half")
			switch dice {
			case 0:
				return nil, failure
			case 1:
				panic("boom")
			case 2:
				runtime.Goexit()
			case 3:
				child, err := m.Submit(inner, Spec{Name: "child"}, fn(rand.New(rand.NewPCG(seed, 5))))
				if err != nil {
					return nil, err
				}
				if err := child.Wait(inner); err != nil {
					return nil, err
				}
			case 4:
				if err := Blocking(inner, func() error { runtime.Gosched(); return inner.Err() }); err != nil {
					return nil, err
				}
			}
			r := newResource()
			mu.Lock()
			made = append(made, r)
			mu.Unlock()
			return r, nil
		}
	}
	sub := m.Subscribe(Filter{}, func() {})
	var wg sync.WaitGroup
	for seed := range uint64(8) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 4))
			for range 300 {
				task, err := m.Submit(ctx, Spec{Owner: seed}, fn(rng))
				if err != nil {
					assert.ErrorIs(t, err, ErrCapacity)
					continue
				}
				switch rng.IntN(5) {
				case 0:
					task.Cancel(nil)
				case 1:
					for _, s := range m.List(Filter{Owner: seed}) {
						if other, err := m.Get(s.ID); err == nil {
							other.Cancel(failure)
						}
					}
				case 2:
					m.List(Filter{States: []State{Running}})
					sub.Next()
				case 3:
					_, err := task.Watch(ctx, 1)
					assert.NoError(t, err)
				default:
					if task.Wait(ctx) != nil {
						continue
					}
					if _, err := task.Result(); err != nil {
						assert.ErrorIs(t, err, ErrNotFound)
					}
					if rng.IntN(2) == 0 {
						drop(task)
					} else {
						assert.NoError(t, task.Discard())
					}
				}
			}
		})
	}
	wg.Wait()
	sub.Close()
	require.NoError(t, m.Shutdown(ctx))
	s := m.Stats()
	require.Equal(t, s.Submitted, s.Succeeded+s.Failed+s.Cancelled)
	require.Zero(t, s.Busy)
	require.Zero(t, s.Running)
	for _, r := range made {
		require.Zero(t, r.refs.Load(), "references left")
	}
	for runtime.NumGoroutine() > before {
		runtime.Gosched() // the last ones have signalled their end and are about to return
	}
}

func BenchmarkSubmitWait(b *testing.B) {
	m := newManager(b, Options[*resource]{Retain: 10})
	r := newResource()
	b.ReportAllocs()
	for b.Loop() {
		task := submit(b, m, give(r))
		if err := task.Wait(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReport(b *testing.B) {
	m := newManager(b, Options[*resource]{})
	b.ReportAllocs()
	task := submit(b, m, func(inner context.Context) (*resource, error) {
		for i := int64(0); b.Loop(); i++ {
			Report(inner, i, 0, "working")
		}
		return newResource(), nil
	})
	if err := task.Wait(ctx); err != nil {
		b.Fatal(err)
	}
}
