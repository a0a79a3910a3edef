package endpoint_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/endpointtest"
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

func TestRefTokenReleasesOnce(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := calling(t)
	s := serve(t, endpoint.ServerOptions{Registry: numbers(t)})
	for name, through := range map[string]endpoint.Caller{"another process": c, "this process": s} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			var refs []*endpoint.Ref[int]
			for range 4 {
				ref, err := endpoint.CallManaged[int](ctx, through, "number", modelIn{Size: 7})
				require.NoError(t, err)
				refs = append(refs, ref)
			}
			id := refs[0].ID()
			rows, err := through.Release(ctx, id)
			require.NoError(t, err)
			require.True(t, rows[0].Released)
			require.ErrorIs(t, refs[0].Err(), endpoint.ErrClosed, "the oldest was taken")
			require.NoError(t, refs[0].Close())
			released, err := refs[0].Release(ctx)
			require.NoError(t, err)
			require.False(t, released)
			require.EqualValues(t, 3, references(t, through, id), "it had nothing left to give back")

			released, err = refs[2].Release(ctx)
			require.NoError(t, err)
			require.True(t, released)
			rows, err = through.Release(ctx, id, id, id)
			require.NoError(t, err)
			require.True(t, wentBack(rows)[id])
			_, err = through.ObjectInfo(ctx, id)
			require.ErrorIs(t, err, endpoint.ErrStale)
			for _, ref := range refs {
				require.ErrorIs(t, ref.Err(), endpoint.ErrClosed)
				require.NoError(t, ref.Close())
			}
		})
	}
}

// A reference that is released by id before its Ref exists does not become a live Ref.
func TestRefReleasedBeforeKnown(t *testing.T) {
	s := serve(t, endpoint.ServerOptions{Registry: numbers(t)})
	c, _, _ := calling(t)
	for name, through := range map[string]endpoint.Caller{"another process": c, "this process": s} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			kept, err := endpoint.CallManaged[int](ctx, through, "number", modelIn{Size: 7})
			require.NoError(t, err)
			defer kept.Close()
			var all sync.WaitGroup
			refs := make([]*endpoint.Ref[int], 100)
			for i := range refs {
				all.Go(func() {
					ref, err := endpoint.CallManaged[int](ctx, through, "number", modelIn{Size: 7})
					if err != nil {
						t.Error(err)
						return
					}
					refs[i] = ref
				})
				all.Go(func() {
					if _, err := through.Release(ctx, kept.ID()); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			live := map[string]uint64{} // the object may have been destroyed and created again
			for _, ref := range append(refs, kept) {
				if ref.Err() == nil {
					live[ref.ID()]++
				}
				defer ref.Close()
			}
			for id, n := range live {
				info, err := through.ObjectInfo(ctx, id)
				require.NoError(t, err)
				require.Equal(t, n, info.Mine)
			}
			list, err := through.Objects(ctx)
			require.NoError(t, err)
			require.Len(t, list, len(live))
		})
	}
}

// A caller that leaves before the answer releases the reference, once.
func TestRefReleaseAbandoned(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := calling(t)
	ctx := context.Background()
	kept, err := endpoint.CallManaged[int](ctx, c, "number", modelIn{Size: 7})
	require.NoError(t, err)
	defer kept.Close()
	ref, err := endpoint.CallManaged[int](ctx, c, "number", modelIn{Size: 7})
	require.NoError(t, err)
	late, cancel := context.WithCancel(ctx)
	cancel()
	_, err = ref.Release(late)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, ref.Close())
	endpointtest.Eventually(t, waitLimit, "it went back", func() bool { return references(t, c, kept.ID()) == 1 })
	require.NoError(t, kept.Err())
}

// numbers returns a registry with one endpoint whose results are objects.
func numbers(t *testing.T) *endpoint.Registry {
	t.Helper()
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "number", func(_ context.Context, in modelIn) (int, error) { return in.Size, nil },
		endpoint.Managed()))
	return r
}

// Tokens of a client are checked: foreign tokens, repeated tokens, lists of different lengths.
func TestRefTokensChecked(t *testing.T) {
	s := serve(t, endpoint.ServerOptions{Registry: numbers(t), Logger: discard()})
	holder, thief := politePeer(t, s.Socket()), politePeer(t, s.Socket())
	hold := func(p *peer) message.ObjectRef {
		args, err := message.Marshal(map[string]int{"size": 1})
		require.NoError(t, err)
		frame, err := p.send(message.OpCall, message.Call{Endpoint: "number", Args: args})
		require.NoError(t, err)
		got, err := message.ParseReturned(frame.Body)
		require.NoError(t, err)
		return *got.Object
	}
	release := func(p *peer, ask message.ReleaseObjects) []message.ObjectReleased {
		frame, err := p.send(message.OpObjectRelease, ask)
		require.NoError(t, err)
		require.Equal(t, wire.KindResponse, frame.Kind)
		var got message.ObjectsReleased
		require.NoError(t, message.Unmarshal(frame.Body, &got))
		for i, row := range got.Objects {
			require.Equal(t, row.Released, row.Error == nil, "a refusal says why")
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
	holder.refused(message.CodeInvalidArgument, message.OpObjectRelease, message.ReleaseObjects{IDs: []string{"a", "b"}, Tokens: []uint64{1}})
	holder.refused(message.CodeInvalidArgument, message.OpObjectRelease, message.ReleaseObjects{IDs: []string{}, Tokens: []uint64{1}})
	require.Equal(t, []message.ObjectReleased{{ID: first.ID, Released: true, Destroyed: true, Token: other.Token}}, release(thief, one(0)))
}
