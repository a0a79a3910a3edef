package server

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// The parts of a version come from one user. A part of another user is refused, and the parts that wait are not affected.
func TestPartsOfTwoUsers(t *testing.T) {
	t.Parallel()
	s := newModelServer(t, catalog.Retention{})
	publish := func(ctx context.Context, uid uint32, index uint64) (uint64, error) {
		return s.Models.Publish(ctx, Publication{
			Name: "m", StateDict: s.weights(t, 64), Part: message.Part{Index: index, Of: 2}, Origin: catalog.Origin{Publisher: catalog.Holder{UID: uid}},
		})
	}
	first := make(chan error, 1)
	go func() {
		_, err := publish(t.Context(), 1000, 0)
		first <- err
	}()
	require.Eventually(t, func() bool { return len(s.Models.List().Incomplete) == 1 }, time.Minute, time.Millisecond)
	_, err := publish(t.Context(), 1001, 1)
	require.ErrorIs(t, err, status.ErrPermission)
	require.ErrorContains(t, err, "uid 1000")
	version, err := publish(t.Context(), 1000, 1)
	require.NoError(t, err)
	require.EqualValues(t, 1, version)
	require.NoError(t, <-first)
	require.Empty(t, s.Models.List().Incomplete)
}
