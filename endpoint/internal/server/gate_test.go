package server

import (
	"context"
	"math"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Changes wait while a successor adopts the catalog. They run if it fails, and are refused if it serves.
func TestGate(t *testing.T) {
	t.Parallel()
	for _, left := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var g gate
			require.NoError(t, g.enter(t.Context()))
			closed := make(chan error, 1)
			go func() { closed <- g.close(t.Context()) }()
			synctest.Wait()
			require.Empty(t, closed, "a change runs")
			entered := make(chan error, 1)
			go func() { entered <- g.enter(t.Context()) }()
			synctest.Wait()
			require.Empty(t, entered, "the gate is shut")
			g.exit()
			require.NoError(t, <-closed)
			synctest.Wait()
			require.Empty(t, entered)

			ended, cancel := context.WithCancel(t.Context())
			cancel()
			require.ErrorIs(t, g.enter(ended), context.Canceled)
			g.open(left)
			if left {
				require.ErrorIs(t, <-entered, status.ErrLeaving)
				require.ErrorIs(t, g.enter(t.Context()), status.ErrLeaving)
				return
			}
			require.NoError(t, <-entered)
			g.exit()
		})
	}
}

// A gate whose changes do not end in time opens again.
func TestGateCloseIsBounded(t *testing.T) {
	t.Parallel()
	var g gate
	require.NoError(t, g.enter(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, g.close(ctx), context.Canceled)
	require.NoError(t, g.enter(t.Context()))
	g.exit()
	g.exit()
	require.NoError(t, g.close(t.Context()))
	g.open(false)
}

// Each limit on publications is checked for the client and for all clients. Publications that end are no longer counted.
func TestQuotas(t *testing.T) {
	t.Parallel()
	limits := status.PublishLimits{Versions: 2, Storages: 4, Bytes: 100, ManifestBytes: 50}
	all := status.PublishLimits{Versions: 3, Storages: 100, Bytes: 1000, ManifestBytes: 1000}
	var q quotas
	take := func(session uint64, u Usage) error { return q.take(charge{session, u}, limits, all) }
	full := Usage{Versions: 1, Storages: 4, Bytes: 100, Manifests: 50}
	require.NoError(t, take(1, full))
	for limit, more := range map[status.Limit]Usage{
		status.LimitStorages: {Versions: 1, Storages: 1}, status.LimitStorageBytes: {Versions: 1, Bytes: 1}, status.LimitManifestBytes: {Versions: 1, Manifests: 1},
		status.LimitVersions: {Versions: 2},
	} {
		err := take(1, more)
		require.ErrorIs(t, err, status.ErrLimit, limit)
		require.ErrorContains(t, err, "this client")
	}
	require.NoError(t, take(1, Usage{Versions: 1}))
	require.NoError(t, take(2, Usage{Versions: 1}))
	require.ErrorContains(t, take(3, Usage{Versions: 1}), "clients may have 3 versions published, and has 3")
	require.NotContains(t, q.by, uint64(3), "a refused client leaves nothing")

	q.giveBack(charge{1, full})
	q.giveBack(charge{}) // a publication of the server's own process
	require.NoError(t, take(3, full))
	q.giveBack(charge{3, full})
	q.giveBack(charge{2, Usage{Versions: 1}})
	q.giveBack(charge{1, Usage{Versions: 1}})
	require.Equal(t, Usage{}, q.total)
	require.Empty(t, q.by)
}

// The sum of the sizes that a client claims does not overflow.
func TestChargeOfHugeHandles(t *testing.T) {
	t.Parallel()
	in := &message.Publish{Handles: []message.Handle{{Bytes: math.MaxInt64}, {Bytes: 1}}}
	_, err := newCharge(1, in, wire.InProcessFiles(nil))
	require.ErrorIs(t, err, wire.ErrProtocol)
	in.Handles = in.Handles[:1]
	c, err := newCharge(1, in, wire.InProcessFiles(nil))
	require.NoError(t, err)
	require.EqualValues(t, math.MaxInt64, c.Bytes)
}
