package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Clients see the loads that a server announces, beside published versions.
func TestServerAnnounceLoad(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := fixture.Serve(t, endpoint.ServerOptions{})
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true, Devices: []driver.Device{fixture.Device(t)}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	_, err = s.AnnounceLoad("no/../name\x00", "")
	require.ErrorIs(t, err, endpoint.ErrInvalid)

	next, err := s.AnnounceLoad("b", "b.safetensors")
	require.NoError(t, err)
	other, err := s.AnnounceLoad("a", "")
	require.NoError(t, err)
	list, err := c.List(ctx)
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, "a", list[0].Name)
	require.Equal(t, endpoint.LoadWaiting, list[0].Loading.State)
	require.Equal(t, list, fixture.ListOf(s))

	next.Progress(0, 100)
	next.Progress(40, 100)
	list, err = c.List(ctx)
	require.NoError(t, err)
	got := list[1].Loading
	require.Equal(t, endpoint.LoadRunning, got.State)
	require.EqualValues(t, 40, got.Done)
	require.EqualValues(t, 100, got.Total)
	require.Equal(t, "b.safetensors", got.Source)
	require.Positive(t, got.BytesPerSecond())
	_, err = c.Acquire(ctx, "b", endpoint.AcquireOptions{})
	require.ErrorIs(t, err, endpoint.ErrLoading)
	require.ErrorIs(t, err, endpoint.ErrNotFound)
	require.ErrorIs(t, err, message.CodeNotFound)
	require.ErrorContains(t, err, "40 of 100 bytes")

	other.Fail(fmt.Errorf("slab: %w", driver.ErrOutOfMemory))
	list, err = c.List(ctx)
	require.NoError(t, err)
	require.Equal(t, endpoint.LoadFailed, list[0].Loading.State)
	require.ErrorIs(t, list[0].Loading.Err(), driver.ErrOutOfMemory)
	_, err = c.Acquire(ctx, "a", endpoint.AcquireOptions{})
	require.ErrorIs(t, err, endpoint.ErrNotFound)
	require.ErrorIs(t, err, driver.ErrOutOfMemory)
	require.NotErrorIs(t, err, endpoint.ErrLoading)
	text, err := json.Marshal(list[0].Loading)
	require.NoError(t, err)
	var back endpoint.LoadInfo
	require.NoError(t, json.Unmarshal(text, &back))
	require.EqualError(t, back.Err(), list[0].Loading.Error)

	again, err := s.AnnounceLoad("a", "again")
	require.NoError(t, err)
	other.Progress(1, 2) // the previous load no longer has an effect
	other.Done()
	list, err = c.List(ctx)
	require.NoError(t, err)
	require.Equal(t, endpoint.LoadWaiting, list[0].Loading.State)
	again.Done()
	next.Done()
	list, err = c.List(ctx)
	require.NoError(t, err)
	require.Empty(t, list)
	_, err = c.Acquire(ctx, "b", endpoint.AcquireOptions{})
	require.NotErrorIs(t, err, endpoint.ErrLoading)
	var none *endpoint.Load
	none.Progress(1, 2)
	none.Fail(os.ErrClosed)
	none.Done()
}
