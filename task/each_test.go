package task

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEachResultShowsWhatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, Options[*resource]{TTL: ttl})
		seen := func() map[string]*resource {
			all := map[string]*resource{}
			m.EachResult(func(id string, r *resource) { all[id] = r })
			return all
		}
		first, r := run(t, m)
		require.Error(t, submit(t, m, func(context.Context) (*resource, error) { return nil, errors.New("no") }).Wait(ctx))
		running := submit(t, m, func(ctx context.Context) (*resource, error) { <-ctx.Done(); return nil, ctx.Err() })
		require.Equal(t, map[string]*resource{first.ID(): r}, seen(), "those that failed or run have none")
		require.EqualValues(t, 1, r.refs.Load())
		time.Sleep(ttl)
		synctest.Wait()
		require.Empty(t, seen())
		require.EqualValues(t, 2, m.Stats().Expired)
		forgotten, _ := run(t, m)
		drop(forgotten)
		require.EqualValues(t, 2, m.Stats().Expired, "age is not what dropped it")
		require.True(t, running.Cancel(nil))
	})
}
