package client_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// next returns the next event of a watcher.
func next(t testing.TB, w *endpoint.Watcher) endpoint.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), fixture.WaitLimit)
	defer cancel()
	e, err := fixture.NextEvent(ctx, w)
	require.NoError(t, err)
	return e
}

// pings checks that the connection works.
func pings(t testing.TB, c *endpoint.Client, end *fixture.OwnerEnd) {
	t.Helper()
	pinged := make(chan error, 1)
	go func() { _, err := c.Ping(context.Background()); pinged <- err }()
	end.SendFrame(wire.KindResponse, end.NextRequest(message.OpPing, nil), message.Pong{})
	require.NoError(t, <-pinged)
}
