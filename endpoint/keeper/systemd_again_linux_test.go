package keeper

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// A server that could not be created leaves what the service manager has passed for the next attempt of its process.
func TestSystemdStoredAgain(t *testing.T) {
	f, err := memoryFile("test", 4096)
	require.NoError(t, err)
	s := &Systemd{stored: map[string]*os.File{"v1.0": f, "j1": f}, names: map[string]bool{"v1.0": true, "j1": true}}
	for range 2 {
		stored, err := s.Stored()
		require.NoError(t, err)
		require.Len(t, stored, 2)
		for _, f := range stored {
			require.NoError(t, f.Close())
		}
	}
	require.NoError(t, s.Close())
	require.ErrorIs(t, f.Close(), os.ErrClosed)
}
