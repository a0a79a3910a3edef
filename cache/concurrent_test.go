package cache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Many callers request one key at once. There is no moment between the end of the build and the existence of the value
// at which a late caller could build again.
func TestConcurrentGetsBuildOnce(t *testing.T) {
	t.Parallel()
	for range 200 {
		c := newCache(t, Options[*resource]{})
		var builds atomic.Int32
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				ref, err := c.Get(ctx, key("a"), func(context.Context) (*resource, error) {
					builds.Add(1)
					return &resource{}, nil
				})
				if assert.NoError(t, err) {
					assert.False(t, ref.Value().isClosed())
					ref.Close()
				}
			})
		}
		wg.Wait()
		require.Equal(t, int32(1), builds.Load())
	}
}

// All operations run at random on many goroutines. A referenced value is open, each built value is closed exactly once,
// and no goroutine remains.
func TestEverythingAtOnce(t *testing.T) {
	before := runtime.NumGoroutine()
	c := New(Options[*resource]{
		Entries: 5, Bytes: 60,
		Cost:    func(_ Key, r *resource) int64 { return r.bytes },
		OnEvict: func(_ Key, r *resource) { r.closed.Add(1) },
	})
	var mu sync.Mutex
	var built []*resource
	failure := errors.New("failed")
	load := func(rng *rand.Rand) func(context.Context) (*resource, error) {
		bytes, dice := rng.Int64N(30), rng.IntN(10)
		return func(ctx context.Context) (*resource, error) {
			switch dice {
			case 0:
				return nil, failure
			case 1:
				panic("boom")
			case 2:
				runtime.Goexit()
			case 3:
				bytes = 61
			case 4, 5:
				runtime.Gosched()
			}
			r := &resource{bytes: bytes}
			mu.Lock()
			built = append(built, r)
			mu.Unlock()
			return r, nil
		}
	}
	use := func(ref *Ref[*resource], err error) {
		if err != nil {
			for _, known := range []error{failure, ErrPanic, ErrGoexit, context.Canceled} {
				if errors.Is(err, known) {
					return
				}
			}
			assert.NoError(t, err)
			return
		}
		assert.False(t, ref.Value().isClosed(), "closed under a reference")
		second, err := ref.Clone()
		assert.NoError(t, err)
		assert.NoError(t, ref.Close())
		assert.False(t, ref.Value().isClosed(), "closed under the other reference")
		assert.NoError(t, second.Close())
	}
	var wg sync.WaitGroup
	for seed := range uint64(8) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 3))
			for range 1500 {
				k := Key{fmt.Sprint(rng.IntN(2)), fmt.Sprint(rng.IntN(5))}
				switch rng.IntN(12) {
				case 0:
					c.Invalidate(k)
				case 1:
					c.InvalidateGroup(k.Group)
				case 2:
					if ref, ok := c.Lookup(k); ok {
						ref.Discard()
						use(ref, nil)
					}
				case 3:
					use(c.GetAlone(ctx, k, load(rng)))
				case 4, 5:
					leaving, leave := context.WithCancel(ctx)
					go leave()
					use(c.Get(leaving, k, load(rng)))
				default:
					use(c.Get(ctx, k, load(rng)))
				}
			}
		})
	}
	wg.Wait()
	s := c.Stats()
	require.Zero(t, s.PinnedEntries)
	require.LessOrEqual(t, s.Entries, 5)
	require.LessOrEqual(t, s.Bytes, int64(60))
	require.NoError(t, c.Close(ctx))
	s = c.Stats()
	require.Zero(t, s.DroppedEntries)
	require.Zero(t, s.DroppedBytes)
	require.Zero(t, s.Builds)
	for _, r := range built {
		require.Equal(t, int32(1), r.closed.Load(), "times closed")
	}
	for runtime.NumGoroutine() > before {
		runtime.Gosched() // the last ones have signalled their end and are about to return
	}
}

func BenchmarkHit(b *testing.B) {
	c := newCache(b, Options[*resource]{})
	put(b, c, "a", 1)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			ref, err := c.Get(ctx, key("a"), unexpected)
			if err != nil {
				b.Fatal(err)
			}
			ref.Close()
		}
	})
}

func BenchmarkMiss(b *testing.B) {
	c := newCache(b, Options[*resource]{Entries: 100})
	r := &resource{}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		ref, err := c.Get(ctx, Key{"g", fmt.Sprint(i)}, give(r))
		if err != nil {
			b.Fatal(err)
		}
		ref.Close()
	}
}
