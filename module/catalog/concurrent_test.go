package catalog_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/module/catalog"
)

// Publishers, readers and ending sessions run concurrently. The memory of a leased version is open, and at the end
// everything is closed exactly once.
func TestConcurrentPublishersReadersAndSessionsThatEnd(t *testing.T) {
	t.Parallel()
	const publications, readers, rounds = 300, 8, 400
	var freed atomic.Int64
	c := catalog.New(catalog.Options{Retain: catalog.Retention{Versions: 1}, Freed: func(string, uint64, error) { freed.Add(1) }})
	var published atomic.Int64
	var probes sync.Map // of a version to its probe

	publish := func() {
		p := &probe{bytes: 8}
		sd := p.stateDict(t)
		probes.Store(sd, p)
		_, err := c.Publish("model", sd, catalog.Origin{})
		assert.NoError(t, err)
		published.Add(1)
	}
	publish()

	watch, done, watched := make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	w := c.Subscribe(nil, func() {
		select {
		case watch <- struct{}{}:
		default:
		}
	})
	var last uint64
	look := func() {
		for _, e := range w.Next() {
			assert.Greater(t, e.Seq, last)
			last = e.Seq
		}
		c.List()
		c.Holdings()
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for i := range publications {
				publish()
				if i%50 == 49 {
					if err := c.Withdraw("model"); err != nil {
						assert.ErrorIs(t, err, catalog.ErrNotFound)
					}
				}
			}
		})
	}
	for id := range uint64(readers) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(id, 2))
			for range rounds {
				l, err := c.Acquire("model", 0, catalog.Holder{ID: id})
				if err != nil {
					assert.ErrorIs(t, err, catalog.ErrNotFound)
					continue
				}
				p, _ := probes.Load(l.StateDict())
				assert.False(t, p.(*probe).isClosed(), "closed under a lease")
				if rng.IntN(5) == 0 {
					assert.GreaterOrEqual(t, c.ReleaseHolder(id), 1)
				} else {
					assert.NoError(t, c.Release(l.ID, id))
				}
			}
		})
	}
	go func() {
		defer close(watched)
		for {
			select {
			case <-watch:
				look()
			case <-done:
				look()
				return
			}
		}
	}()
	wg.Wait()
	close(done)
	<-watched
	require.Equal(t, c.Stats().Seq, last, "the watcher was told of the last event")
	w.Close()
	require.Zero(t, c.Stats().Leases)
	require.NoError(t, c.Close())
	require.Equal(t, published.Load(), freed.Load())
	probes.Range(func(_, p any) bool {
		require.Equal(t, int32(1), p.(*probe).closed.Load())
		return true
	})
}

// The catalog closes while others use it. Versions published afterwards are closed too.
func TestCloseAgainstEverythingElse(t *testing.T) {
	t.Parallel()
	for range 50 {
		c := catalog.New(catalog.Options{})
		var wg sync.WaitGroup
		all := make([]*probe, 8)
		for i := range all {
			all[i] = &probe{bytes: 1}
			sd := all[i].stateDict(t)
			wg.Go(func() {
				_, err := c.Publish("model", sd, catalog.Origin{})
				if err == nil {
					_, err = c.Acquire("model", 0, catalog.Holder{ID: uint64(i)})
				}
				assert.True(t, err == nil || errors.Is(err, catalog.ErrClosed), "%v", err)
				c.ReleaseHolder(uint64(i))
			})
		}
		wg.Go(func() { assert.NoError(t, c.Close()) })
		wg.Wait()
		for _, p := range all {
			require.Equal(t, int32(1), p.closed.Load())
		}
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	c := catalog.New(catalog.Options{})
	_, err := c.Publish("model", (&probe{bytes: 1}).stateDict(b), catalog.Origin{})
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		l, err := c.Acquire("model", 0, catalog.Holder{ID: 1})
		if err != nil {
			b.Fatal(err)
		}
		if err := c.Release(l.ID, 1); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPublishWatched publishes with 1,000 watchers that never read.
func BenchmarkPublishWatched(b *testing.B) {
	c := catalog.New(catalog.Options{})
	for range 1000 {
		c.Subscribe([]string{"model"}, func() {})
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Publish("model", (&probe{bytes: 1}).stateDict(b), catalog.Origin{}); err != nil {
			b.Fatal(err)
		}
	}
}
