package server

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// The description of a server counts what clients hold.
func TestServerInfoCounts(t *testing.T) {
	t.Parallel()
	s := newModelServer(t, catalog.Retention{})
	s.publish(t, "m")
	require.NoError(t, s.ask(t, message.OpAcquire, message.Acquire{Name: "m"}, new(message.Acquired)))
	var info message.ServerInfo
	require.NoError(t, s.ask(t, message.OpServerInfo, struct{}{}, &info))
	require.Equal(t, s.ID, info.Server)
	require.False(t, info.Running, "it has no socket")
	require.EqualValues(t, 1, info.Stats.Models)
	require.EqualValues(t, 1, info.Stats.Leases)
	require.Len(t, info.Sessions, 1)
	require.True(t, info.Sessions[0].Self)
	require.EqualValues(t, 1, info.Sessions[0].Leases)
	require.Positive(t, info.Sessions[0].Bytes)
	require.Zero(t, info.Stats.Clients, "the server's own session is no client")
	names := map[string]bool{}
	for _, l := range info.Limits {
		require.False(t, names[l.Name], "%s is listed twice", l.Name)
		names[l.Name] = true
	}
	require.NotEmpty(t, names)
	require.NotEmpty(t, info.Capabilities.Handles)
}

func TestSocketIndex(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]int32{
		"/run/owner-0.sock": 0, "/run/owner-12.sock": 12, "/run/owner.sock": -1, "/run/owner-x.sock": -1, "/run/owner-3": -1, "": -1, "/run/a-4294967296.sock": -1,
	} {
		require.Equal(t, want, socketIndex(path), path)
	}
}

// Defaults follow the memory of the devices; limits that are set stay.
func TestLimitDefaults(t *testing.T) {
	t.Parallel()
	var l status.Limits
	l.Clients, l.Publish.Versions = 3, 5
	limitDefaults(&l, nil)
	require.Equal(t, 3, l.Clients)
	require.Equal(t, 5, l.Publish.Versions)
	require.EqualValues(t, noMemory/8, l.RequestBytesTotal)
	require.Positive(t, l.PublishTotal.ManifestBytes)
	require.LessOrEqual(t, l.ObjectBytes, l.ObjectBytesTotal)
	bytes, why := memoryLimit([]driver.Device{})
	require.EqualValues(t, noMemory, bytes)
	require.NotEmpty(t, why)

	for _, c := range []struct{ in, want int64 }{{0, 100}, {7, 7}, {-1, -1}} {
		field := c.in
		require.NotEmpty(t, budgetOr(&field, 100, "why"))
		require.Equal(t, c.want, field)
	}
}

func TestPing(t *testing.T) {
	t.Parallel()
	s := testServer(t)
	var out message.Pong
	require.NoError(t, s.perform(t, message.OpPing, message.Ping{}, &out, true))
	require.ErrorIs(t, s.perform(t, message.OpUnwatch, message.Unwatch{Watch: 9}, new(message.Unwatched), true), status.ErrNotFound)
	require.ErrorIs(t, s.perform(t, message.OpWatch, message.Watch{Names: make([]string, 1<<16)}, new(message.Watching), true), status.ErrLimit)
	require.ErrorIs(t, s.perform(t, message.OpWatch, message.Watch{Names: []string{"../x"}}, new(message.Watching), true), status.ErrInvalid)
}
