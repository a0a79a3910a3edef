package endpoint_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Each release reports its outcome and the reason of a refusal: a missing object differs from one that others hold.
func TestRefReleaseOutcome(t *testing.T) {
	hostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	ctx := context.Background()
	for path, c := range paths(t) {
		t.Run(path, func(t *testing.T) {
			first, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", modelIn{Size: 1})
			require.NoError(t, err)
			defer first.Close()
			second, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", modelIn{Size: 1})
			require.NoError(t, err)
			defer second.Close()
			id := first.ID()
			require.Equal(t, id, second.ID())

			rows, err := c.Release(ctx, id, id, id, "nothing")
			require.NoError(t, err)
			require.Len(t, rows, 4)
			require.Equal(t, endpoint.Released{ObjectID: id, Released: true, Refs: 1}, rows[0])
			require.Equal(t, endpoint.Released{ObjectID: id, Released: true, Destroyed: true}, rows[1])
			for i, gone := range map[int]string{2: id, 3: "nothing"} {
				require.False(t, rows[i].Released)
				require.ErrorIs(t, rows[i].Err, endpoint.ErrStale)
				require.ErrorIs(t, rows[i].Err, message.CodeStaleHandle)
				var stale *endpoint.StaleError
				require.ErrorAs(t, rows[i].Err, &stale)
				require.Equal(t, gone, stale.ObjectID)
				require.Equal(t, first.ServerID(), stale.ServerID)
			}
			text, err := json.Marshal(rows[:2])
			require.NoError(t, err)
			require.JSONEq(t, `[{"object_id":"`+id+`","released":true,"destroyed":false,"refcount":1},
				{"object_id":"`+id+`","released":true,"destroyed":true,"refcount":0}]`, string(text))
			_, err = c.Release(ctx, "")
			require.ErrorIs(t, err, endpoint.ErrInvalid)
			rows, err = c.Release(ctx)
			require.NoError(t, err)
			require.Empty(t, rows)
		})
	}
}

func TestRefReleaseOfOthers(t *testing.T) {
	hostOnly(t, "the device makes no difference to it")
	c, _, _ := calling(t)
	ctx := context.Background()
	other := client(t, c.Socket())
	id := other.hold("model", "k", 1)
	rows, err := c.Release(ctx, id)
	require.NoError(t, err)
	require.False(t, rows[0].Released)
	require.EqualValues(t, 1, rows[0].Refs, "the other has it")
	require.ErrorIs(t, rows[0].Err, endpoint.ErrPermission)
	require.NotErrorIs(t, rows[0].Err, endpoint.ErrStale)
}

// The error for the result of a task whose object is gone names the object.
func TestRefStaleError(t *testing.T) {
	hostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	ctx := context.Background()
	for path, c := range paths(t) {
		t.Run(path, func(t *testing.T) {
			info, err := c.Submit(ctx, "model task", modelIn{Size: 1})
			require.NoError(t, err)
			info, err = c.Wait(ctx, info.ID)
			require.NoError(t, err)
			require.Empty(t, info.ObjectID, "nobody has fetched it")
			ref, err := endpoint.ResultManaged[*tensor.Tensor](ctx, c, info.ID)
			require.NoError(t, err)
			info, err = c.Task(ctx, info.ID)
			require.NoError(t, err)
			require.Equal(t, ref.ID(), info.ObjectID)
			released, err := ref.Release(ctx)
			require.NoError(t, err)
			require.True(t, released)
			require.NoError(t, ref.Close())
			for range 2 {
				err = c.Result(ctx, info.ID, nil)
				var stale *endpoint.StaleError
				require.ErrorAs(t, err, &stale)
				require.Equal(t, ref.ID(), stale.ObjectID)
				require.Equal(t, ref.ServerID(), stale.ServerID)
				require.Equal(t, endpoint.StaleObjectMissing, stale.Reason)
				require.ErrorIs(t, err, message.CodeStaleHandle)
			}
			info, err = c.Task(ctx, info.ID)
			require.NoError(t, err)
			require.Equal(t, ref.ID(), info.ObjectID, "it is still the one that it was")
		})
	}
}
