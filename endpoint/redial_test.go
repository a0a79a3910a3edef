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

// A client closes while its state is resumed on a new connection. Waiting calls receive ErrClosed; no context of theirs
// has ended.
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
	again.asked(message.OpWatch, nil) // never answered
	calling := make(chan error, 1)
	go func() { calling <- c.Call(context.Background(), "same", 1, nil) }()
	time.Sleep(20 * time.Millisecond) // until the call waits; a later call is refused with the same error
	require.NoError(t, c.Close())
	err := <-calling
	require.ErrorIs(t, err, endpoint.ErrClosed)
	require.NotErrorIs(t, err, context.Canceled)
}
