package endpoint

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ServerInfo of a stuck server ends although its context does not.
func TestServerInfoTimeout(t *testing.T) {
	s, err := newOwner(ServerOptions{})
	require.NoError(t, err)
	_, err = s.ServerInfo(context.Background())
	require.NoError(t, err)
	s.infoTimeout = 10 * time.Millisecond
	s.engine.Objects.Mu.Lock()
	_, err = s.ServerInfo(context.Background())
	s.engine.Objects.Mu.Unlock()
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, s.Close())
}
