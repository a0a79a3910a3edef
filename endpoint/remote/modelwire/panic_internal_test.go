package modelwire

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
)

// A panic in one of several jobs is their error, and in a writer that of its transfer.
func TestPanicsOfJobsAreErrors(t *testing.T) {
	err := Parallel(t.Context(), 4, 20, func(_ context.Context, i int) error {
		if i == 7 {
			panic(i)
		}
		return nil
	})
	require.ErrorIs(t, err, contain.ErrPanic)

	w := startWriter()
	for range 3 * pieces {
		data := <-w.free
		if data == nil {
			data = make([]byte, arrivedBytes)
		}
		w.full <- piece{nil, 0, data}
	}
	require.ErrorIs(t, w.finish(), contain.ErrPanic)
}
