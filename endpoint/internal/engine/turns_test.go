package engine

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTurns(t *testing.T) {
	t.Parallel()
	var queue turns
	ctx := context.Background()
	first, err := queue.wait(ctx, "f", "a")
	require.NoError(t, err)
	other, err := queue.wait(ctx, "f", "b")
	require.NoError(t, err, "another key is another queue")
	other.end()
	gone, cancel := context.WithCancelCause(ctx)
	cancel(context.DeadlineExceeded)
	_, err = queue.wait(gone, "f", "a")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, context.Canceled)

	counter := 0
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if i%5 == 4 { // leaves from the middle of the queue
				cancel()
			}
			own, err := queue.wait(ctx, "f", "a")
			if err != nil {
				assert.Equal(t, 4, i%5)
				return
			}
			counter++
			own.end()
		})
	}
	first.end()
	all.Wait()
	require.GreaterOrEqual(t, counter, 40)
	require.Empty(t, queue.last, "a key that nobody uses is forgotten")
}

// The calls of a key run in the order in which they came.
func TestTurnsAreInOrder(t *testing.T) {
	t.Parallel()
	var queue turns
	ctx := context.Background()
	first, err := queue.wait(ctx, "f", "")
	require.NoError(t, err)
	var order []int
	var all sync.WaitGroup
	for i := range 20 {
		last := queue.last["f\x00"]
		all.Go(func() {
			own, err := queue.wait(ctx, "f", "")
			require.NoError(t, err)
			order = append(order, i)
			own.end()
		})
		require.Eventually(t, func() bool {
			queue.mu.Lock()
			defer queue.mu.Unlock()
			return queue.last["f\x00"] != last
		}, 10*time.Second, 10*time.Microsecond)
	}
	first.end()
	all.Wait()
	require.IsIncreasing(t, order)
}
