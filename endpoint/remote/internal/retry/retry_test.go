package retry

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPause(t *testing.T) {
	b := Backoff{Initial: time.Second, Max: 5 * time.Second}
	for n, want := range []time.Duration{1, 2, 4, 5, 5} {
		require.Equal(t, want*time.Second, b.Pause(n))
	}
	b.Jitter = 0.5
	for n := range 100 {
		pause := b.Pause(n)
		require.GreaterOrEqual(t, pause, 500*time.Millisecond)
		require.LessOrEqual(t, pause, 7500*time.Millisecond)
	}
}

func TestSleepEndsWithContext(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	require.ErrorIs(t, Sleep(ctx, time.Hour), cause)
	require.NoError(t, Sleep(t.Context(), time.Millisecond))
}
