package client_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// references returns the number of references to an object.
func references(t *testing.T, through endpoint.Caller, id string) uint64 {
	t.Helper()
	info, err := through.ObjectInfo(context.Background(), id)
	require.NoError(t, err)
	return info.Refs
}

// A caller that leaves before the answer releases the reference, once.
func TestRefReleaseAbandoned(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	kept, err := endpoint.CallManaged[int](ctx, c, "number", fixture.ModelIn{Size: 7})
	require.NoError(t, err)
	defer kept.Close()
	ref, err := endpoint.CallManaged[int](ctx, c, "number", fixture.ModelIn{Size: 7})
	require.NoError(t, err)
	late, cancel := context.WithCancel(ctx)
	cancel()
	_, err = ref.Release(late)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, ref.Close())
	proctest.Eventually(t, fixture.WaitLimit, "it went back", func() bool { return references(t, c, kept.ID()) == 1 })
	require.NoError(t, kept.Err())
}

// Tokens of a client are checked: foreign tokens, repeated tokens, lists of different lengths.
func TestRefTokensChecked(t *testing.T) {
	t.Parallel()
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: fixture.Numbers(t), Logger: fixture.Discard()})
	holder, thief := fixture.PolitePeer(t, s.Socket()), fixture.PolitePeer(t, s.Socket())
	hold := func(p *fixture.Peer) message.ObjectRef {
		args, err := message.Marshal(map[string]int{"size": 1})
		require.NoError(t, err)
		frame, err := p.Send(message.OpCall, message.Call{Endpoint: "number", Args: args})
		require.NoError(t, err)
		got, err := message.ParseReturned(frame.Body)
		require.NoError(t, err)
		return *got.Object
	}
	refusal := map[bool]message.Code{false: message.CodePermissionDenied, true: message.CodeStaleHandle} // by whether the object is gone
	release := func(p *fixture.Peer, ask message.ReleaseObjects) []message.ObjectReleased {
		frame, err := p.Send(message.OpObjectRelease, ask)
		require.NoError(t, err)
		require.Equal(t, wire.KindResponse, frame.Kind)
		var got message.ObjectsReleased
		require.NoError(t, message.Unmarshal(frame.Body, &got))
		for i, row := range got.Objects {
			if !row.Released {
				require.Equal(t, refusal[row.Refs == 0], row.Error.Code)
			}
			got.Objects[i].Error = nil
		}
		return got.Objects
	}
	first, second, other := hold(holder), hold(holder), hold(thief)
	require.Equal(t, first.ID, other.ID)
	require.NotEqual(t, first.Token, second.Token)
	nothing := func(left uint64) []message.ObjectReleased {
		return []message.ObjectReleased{{ID: first.ID, Refs: left}}
	}
	one := func(token uint64) message.ReleaseObjects {
		return message.ReleaseObjects{IDs: []string{first.ID}, Tokens: []uint64{token}}
	}
	require.Equal(t, nothing(3), release(thief, one(first.Token)))
	require.Equal(t, nothing(3), release(holder, one(1<<60)))
	require.Equal(t, []message.ObjectReleased{{ID: first.ID, Released: true, Refs: 2, Token: second.Token}}, release(holder, one(second.Token)))
	require.Equal(t, nothing(2), release(holder, one(second.Token)), "once")
	require.Equal(t, []message.ObjectReleased{{ID: first.ID, Released: true, Refs: 1, Token: first.Token}, {ID: first.ID, Refs: 1}, {ID: "x"}},
		release(holder, message.ReleaseObjects{IDs: []string{first.ID, first.ID, "x"}}))
	holder.Refused(message.CodeInvalidArgument, message.OpObjectRelease, message.ReleaseObjects{IDs: []string{"a", "b"}, Tokens: []uint64{1}})
	holder.Refused(message.CodeInvalidArgument, message.OpObjectRelease, message.ReleaseObjects{IDs: []string{}, Tokens: []uint64{1}})
	require.Equal(t, []message.ObjectReleased{{ID: first.ID, Released: true, Destroyed: true, Token: other.Token}}, release(thief, one(0)))
}
