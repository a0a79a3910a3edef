package cache

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// counted is a work that counts its waiters, and refuses callers while refuse is set.
type counted struct {
	joined, left atomic.Int32
	began        bool // of the build, which starts after its caller has joined
	refuse       error
}

func (w *counted) Context(ctx context.Context) context.Context {
	w.began = w.joined.Load() > 0
	return context.WithValue(ctx, counted{}, w)
}

func (w *counted) Join(context.Context) (func(), error) {
	w.joined.Add(1)
	return func() { w.left.Add(1) }, w.refuse
}

func TestWorkKnowsWhoWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var works []*counted
		c := newCache(t, Options[*resource]{Work: func() Work {
			works = append(works, &counted{})
			return works[len(works)-1]
		}})
		g := newGate()
		first := getting(ctx, c, "a", func(inner context.Context) (*resource, error) {
			if inner.Value(counted{}) == nil {
				return nil, errors.New("not the context of the work")
			}
			return g.load(inner)
		})
		synctest.Wait()
		leaving, leave := context.WithCancel(ctx)
		second, third := getting(ctx, c, "a", unexpected), getting(leaving, c, "a", unexpected)
		synctest.Wait()
		require.Len(t, works, 1)
		w := works[0]
		require.True(t, w.began)
		require.Equal(t, []int32{3, 0}, []int32{w.joined.Load(), w.left.Load()})
		leave()
		require.ErrorIs(t, (<-third).err, context.Canceled)
		require.Equal(t, int32(1), w.left.Load())

		w.refuse = errors.New("not you")
		require.ErrorIs(t, (<-getting(ctx, c, "a", unexpected)).err, w.refuse)
		require.Equal(t, int32(1), w.left.Load(), "who was refused does not leave")
		close(g.opened)
		for _, waiting := range []chan outcome{first, second} {
			o := <-waiting
			require.NoError(t, o.err)
			require.NoError(t, o.ref.Close())
		}
		require.Equal(t, int32(3), w.left.Load())
		require.Zero(t, c.Stats().PinnedEntries)
		require.True(t, has(c, "a"))
		require.Len(t, works, 1, "what is there is no work")
	})
}

func TestWhoIsRefusedAsTheBuildEndsKeepsNoPin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c *Cache[*resource]
		g := newGate()
		work := &ending{}
		c = newCache(t, Options[*resource]{Work: func() Work { return work }})
		first := getting(ctx, c, "a", g.load)
		synctest.Wait()
		work.end = func() { // between joining and being refused
			close(g.opened)
			o := <-first
			o.ref.Close()
		}
		_, err := c.Get(ctx, key("a"), unexpected)
		require.ErrorIs(t, err, errRefused)
		require.Zero(t, c.Stats().PinnedEntries)
		require.Equal(t, 1, c.Stats().Entries)
	})
}

var errRefused = errors.New("refused")

// ending is a work that ends while the second caller joins, and refuses that caller.
type ending struct{ end func() }

func (w *ending) Context(ctx context.Context) context.Context { return ctx }

func (w *ending) Join(context.Context) (func(), error) {
	if w.end == nil {
		return func() {}, nil
	}
	w.end()
	return nil, errRefused
}
