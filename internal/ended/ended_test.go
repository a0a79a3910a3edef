package ended

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCause(t *testing.T) {
	mine := errors.New("mine")
	cancelled, cancel := context.WithCancel(t.Context())
	require.NoError(t, Cause(cancelled))
	cancel()
	require.Equal(t, context.Canceled, Cause(cancelled))

	caused, end := context.WithCancelCause(t.Context())
	end(mine)
	late, cancel := context.WithTimeoutCause(t.Context(), time.Nanosecond, mine)
	defer cancel()
	<-late.Done()
	for ctx, err := range map[context.Context]error{caused: context.Canceled, late: context.DeadlineExceeded} {
		require.ErrorIs(t, Cause(ctx), mine)
		require.ErrorIs(t, Cause(ctx), err)
		require.EqualError(t, Cause(ctx), "mine")
	}
}
