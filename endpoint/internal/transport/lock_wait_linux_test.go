package transport_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
)

// An owner waits for the lock of one that stops or is killed. Without enough time it fails and leaves the other alone.
func TestOwnerWaitsForTheLock(t *testing.T) {
	for name, end := range map[string]func(*fixture.Child){
		"stops":     func(c *fixture.Child) { c.Shutdown(time.Second) },
		"is killed": func(c *fixture.Child) { c.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			owner, socket := fixture.Owner(t)
			for _, wait := range []time.Duration{0, 50 * time.Millisecond} {
				_, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, LockWait: wait, Logger: fixture.Discard()})
				require.ErrorIs(t, err, endpoint.ErrInUse)
			}
			began := make(chan error, 1)
			go func() {
				s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, LockWait: time.Minute, Logger: fixture.Discard()})
				if err == nil {
					err = errors.Join(err, s.Close())
				}
				began <- err
			}()
			select {
			case err := <-began:
				t.Fatalf("it began beside the other: %v", err)
			case <-time.After(100 * time.Millisecond):
			}
			end(owner)
			require.NoError(t, <-began)
			require.NoFileExists(t, filepath.Clean(socket))
		})
	}
}
