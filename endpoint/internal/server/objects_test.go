package server

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// managedServer returns a server with an endpoint whose results are managed objects, and a function that makes one.
func managedServer(t *testing.T) (s *Server, create func() (id string, token uint64)) {
	d := numberEndpoint()
	d.Options.Managed = true
	s = testServer(t, d)
	return s, func() (string, uint64) {
		var out message.Returned
		require.NoError(t, s.perform(t, message.OpCall, message.Call{Endpoint: "number"}, &out, true))
		return out.Object.ID, out.Object.Token
	}
}

func TestObjectReferences(t *testing.T) {
	t.Parallel()
	s, create := managedServer(t)
	id, first := create()
	var info message.ObjectInfo
	require.NoError(t, s.perform(t, message.OpObjectInfo, message.Object{ID: id}, &info, true))
	require.Equal(t, "number", info.Endpoint)
	require.EqualValues(t, 1, info.Mine)
	require.NoError(t, s.perform(t, message.OpObjectRefer, message.Object{ID: id}, &info, false))
	require.NoError(t, s.perform(t, message.OpObjectInfo, message.Object{ID: id}, &info, true))
	require.EqualValues(t, 1, info.Mine, "a lost reply gives its reference back")
	require.NoError(t, s.perform(t, message.OpObjectRefer, message.Object{ID: id}, &info, true))
	second := info.Token
	require.NotEqual(t, first, second)

	release := func(tokens ...uint64) []message.ObjectReleased {
		in := message.ReleaseObjects{Tokens: tokens}
		for range tokens {
			in.IDs = append(in.IDs, id)
		}
		var out message.ObjectsReleased
		require.NoError(t, s.perform(t, message.OpObjectRelease, in, &out, true))
		return out.Objects
	}
	rows := release(first, first, second)
	require.True(t, rows[0].Released)
	require.False(t, rows[0].Destroyed)
	require.False(t, rows[1].Released, "a reference is released once")
	require.NotNil(t, rows[1].Error)
	require.True(t, rows[2].Destroyed)
	require.Zero(t, s.Engine.Objects.Count())
	require.Error(t, s.perform(t, message.OpObjectInfo, message.Object{ID: id}, &info, true))
	require.Error(t, s.perform(t, message.OpObjectRefer, message.Object{ID: id}, &info, true))
}

func TestObjectReleaseIsChecked(t *testing.T) {
	t.Parallel()
	s, create := managedServer(t)
	id, _ := create()
	refuse := func(in message.ReleaseObjects) error {
		return s.perform(t, message.OpObjectRelease, in, new(message.ObjectsReleased), true)
	}
	require.ErrorIs(t, refuse(message.ReleaseObjects{IDs: []string{id}, Tokens: []uint64{1, 2}}), status.ErrInvalid)
	require.ErrorIs(t, refuse(message.ReleaseObjects{IDs: make([]string, message.MaxReleases+1)}), status.ErrLimit)
	require.Equal(t, 1, s.Engine.Objects.Count())
}

// Destroy removes the references of all clients.
func TestObjectDestroy(t *testing.T) {
	t.Parallel()
	s, create := managedServer(t)
	id, token := create()
	var info message.ObjectInfo
	require.NoError(t, s.perform(t, message.OpObjectDestroy, message.Object{ID: id}, &info, true))
	require.Equal(t, id, info.ID)
	require.Zero(t, s.Engine.Objects.Count())
	require.Error(t, s.perform(t, message.OpObjectDestroy, message.Object{ID: id}, &info, true))
	var out message.ObjectsReleased
	require.NoError(t, s.perform(t, message.OpObjectRelease, message.ReleaseObjects{IDs: []string{id}, Tokens: []uint64{token}}, &out, true))
	require.False(t, out.Objects[0].Released)
}

func TestObjectList(t *testing.T) {
	t.Parallel()
	s, create := managedServer(t)
	want := map[string]bool{}
	for range 7 {
		id, _ := create()
		want[id] = true
	}
	got := map[string]bool{}
	for in := (message.Objects{Limit: 3}); ; {
		var out message.ObjectsListed
		require.NoError(t, s.perform(t, message.OpObjects, in, &out, true))
		require.LessOrEqual(t, len(out.Objects), 3)
		for _, info := range out.Objects {
			require.False(t, got[info.ID], "listed twice")
			got[info.ID] = true
		}
		if out.Next == 0 {
			break
		}
		in.After = out.Next
	}
	require.Equal(t, want, got)
	var out message.ObjectsListed
	require.NoError(t, s.perform(t, message.OpObjects, message.Objects{Endpoints: []string{"other"}}, &out, true))
	require.Empty(t, out.Objects)
}
