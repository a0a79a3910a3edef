package engine_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// The error for the result of a task whose object is gone names the object.
func TestRefStaleError(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	ctx := context.Background()
	for path, c := range paths(t) {
		t.Run(path, func(t *testing.T) {
			job, err := c.Submit(ctx, "model task", fixture.ModelIn{Size: 1})
			require.NoError(t, err)
			info, err := job.Wait(ctx)
			require.NoError(t, err)
			require.Empty(t, info.ObjectID, "nobody has fetched it")
			ref, err := endpoint.ResultManaged[*tensor.Tensor](ctx, job)
			require.NoError(t, err)
			info, err = job.Info(ctx)
			require.NoError(t, err)
			require.Equal(t, ref.ID(), info.ObjectID)
			released, err := ref.Release(ctx)
			require.NoError(t, err)
			require.True(t, released)
			require.NoError(t, ref.Close())
			for range 2 {
				err = job.Result(ctx, nil)
				var stale *endpoint.StaleError
				require.ErrorAs(t, err, &stale)
				require.Equal(t, ref.ID(), stale.ObjectID)
				require.Equal(t, ref.ServerID(), stale.ServerID)
				require.Equal(t, endpoint.StaleObjectMissing, stale.Reason)
				require.ErrorIs(t, err, message.CodeStaleHandle)
			}
			info, err = job.Info(ctx)
			require.NoError(t, err)
			require.Equal(t, ref.ID(), info.ObjectID, "it is still the one that it was")
		})
	}
}
