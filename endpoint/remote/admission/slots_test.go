package admission

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Operations over the limit wait, those over the limit of waiting ones are refused, and a wait ends with its context.
func TestSlots(t *testing.T) {
	t.Parallel()
	s := NewSlots(1, 1)
	require.NoError(t, s.Enter(t.Context()))
	require.Equal(t, 1, s.Running())
	entered := make(chan error)
	go func() { entered <- s.Enter(t.Context()) }()
	require.Eventually(t, func() bool { return s.Waiting() == 1 }, 10*time.Second, time.Millisecond)
	require.ErrorIs(t, s.Enter(t.Context()), ErrLimit)
	s.Leave()
	require.NoError(t, <-entered)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { entered <- s.Enter(ctx) }()
	require.Eventually(t, func() bool { return s.Waiting() == 1 }, 10*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-entered, context.Canceled)
	require.Zero(t, s.Waiting())
}
