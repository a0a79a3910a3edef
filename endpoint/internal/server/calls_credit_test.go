package server

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStreamCredit(t *testing.T) {
	c := &credit{items: 2, more: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	require.NoError(t, c.take(ctx))
	require.NoError(t, c.take(ctx))
	taken := make(chan error)
	go func() { taken <- c.take(ctx) }()
	c.add(1)
	require.NoError(t, <-taken)
	go func() { taken <- c.take(ctx) }()
	cancel()
	require.ErrorIs(t, <-taken, context.Canceled)
	for range 100 {
		c.add(1<<64 - 1) // the sum must not overflow
	}
	require.NoError(t, c.take(context.Background()))
}
