package keeper_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// If the owner is killed between two parts, the next owner has all parts of the version before, and nothing of the
// incomplete one. Its publishers learn that it failed, and publish it again.
func TestKilledOwnerBetweenParts(t *testing.T) {
	p := start(t)
	u := newUser(t, p)
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	publish := func(value int) uint64 {
		version, err := publishParts(t.Context(), u.Client, dev, "m", value)
		require.NoError(t, err)
		return version
	}
	read := func(version uint64, value int) {
		t.Helper()
		for i := range 2 {
			h, err := u.Acquire(t.Context(), "m", endpoint.AcquireOptions{Part: endpoint.Part{Index: i, Of: 2}})
			require.NoError(t, err)
			require.Equal(t, version, h.Version())
			require.Equal(t, value, valueIn(t, h))
			require.Equal(t, []string{"w", "b"}, h.StateDict().Names())
			require.NoError(t, h.Close())
		}
		_, err := u.Acquire(t.Context(), "m", endpoint.AcquireOptions{Part: endpoint.Part{Of: 3}})
		require.ErrorIs(t, err, endpoint.ErrPart, "the next owner has the number of parts")
	}
	require.Equal(t, uint64(1), publish(1))
	held, err := u.Acquire(t.Context(), "m", endpoint.AcquireOptions{Part: endpoint.Part{Index: 1, Of: 2}})
	require.NoError(t, err)
	defer held.Close()
	for round := range 2 {
		before, value := uint64(round+1), round+1
		first := make(chan error, 1)
		go func() {
			sd, err := modelOf(dev, 9)
			if err == nil {
				_, err = u.Publish(t.Context(), "m", sd, endpoint.PublishOptions{Part: endpoint.Part{Index: round, Of: 2}})
				sd.Close()
			}
			first <- err
		}()
		require.Eventually(t, func() bool {
			list, err := u.List(t.Context())
			return err == nil && len(list) == 1 && list[0].Incomplete != nil
		}, time.Minute, time.Millisecond)
		restart(t, p, u)
		require.ErrorIs(t, <-first, endpoint.ErrUnavailable)
		list, err := u.List(t.Context())
		require.NoError(t, err)
		require.Nil(t, list[0].Incomplete)
		require.Equal(t, 2, list[0].Versions[0].Parts)
		read(before, value)
		require.Equal(t, 1, valueIn(t, held))
		require.Equal(t, before+1, publish(value+1))
		read(before+1, value+1)
	}
	_, err = u.Rollback(t.Context(), "m", 1)
	require.NoError(t, err, "version 1 is held")
	restart(t, p, u)
	read(4, 1)
	require.Eventually(t, held.Leased, time.Minute, time.Millisecond, "the lease of a part is renewed")
}

// valueIn returns the value of an attached model.
func valueIn(t *testing.T, h *endpoint.Handle) int {
	t.Helper()
	return value(t, h.StateDict())
}
