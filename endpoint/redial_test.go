package endpoint_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// TestClientCloseDuringReconnect closes a client while what it had is taken up on a new connection. What waits for that
// connection is told that the client is closed; no context of its own has ended.
func TestClientCloseDuringReconnect(t *testing.T) {
	drivertest.Leaks(t)
	owner := newFakeOwner(t)
	c, end := owner.connected("one")
	watching := make(chan error, 1)
	go func() { _, err := c.Watch(context.Background()); watching <- err }()
	end.say(wire.KindResponse, end.asked(message.OpWatch, nil), message.Watching{})
	require.NoError(t, <-watching)
	end.Close()

	again := owner.greet("one")
	again.asked(message.OpWatch, nil) // which is never answered
	calling := make(chan error, 1)
	go func() { calling <- c.Call(context.Background(), "same", 1, nil) }()
	time.Sleep(20 * time.Millisecond) // until the call waits; a call that comes later is refused with the same error
	require.NoError(t, c.Close())
	err := <-calling
	require.ErrorIs(t, err, endpoint.ErrClosed)
	require.NotErrorIs(t, err, context.Canceled)
}
