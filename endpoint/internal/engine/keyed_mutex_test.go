package engine

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKeyedMutex(t *testing.T) {
	t.Parallel()
	var locks keyedMutex
	ctx := context.Background()
	unlock, err := locks.lock(ctx, "a")
	require.NoError(t, err)
	other, err := locks.lock(ctx, "b")
	require.NoError(t, err, "another key is another lock")
	other()
	gone, cancel := context.WithCancelCause(ctx)
	cancel(context.DeadlineExceeded)
	_, err = locks.lock(gone, "a")
	require.ErrorIs(t, err, context.DeadlineExceeded)

	counter := 0
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			unlock, err := locks.lock(ctx, "a")
			if err != nil {
				t.Error(err)
				return
			}
			counter++
			unlock()
		})
	}
	unlock()
	all.Wait()
	require.Equal(t, 50, counter)
	require.Empty(t, locks.keys, "a key that nobody uses is forgotten")
}
