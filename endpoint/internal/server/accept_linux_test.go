package server

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// Serve returns an error of accept that does not pass.
func TestAcceptFailsForGood(t *testing.T) {
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	s, err := New(Config{Log: slog.New(slog.DiscardHandler), Socket: filepath.Join(t.TempDir(), "s"), Devices: []driver.Device{dev}})
	require.NoError(t, err)
	require.NoError(t, s.Bind(nil))
	defer s.Close()
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(context.Background()) }()
	require.Eventually(t, s.Serving, 5*time.Second, time.Millisecond)
	require.NoError(t, s.socket.Accepting().SetDeadline(time.Unix(1, 0))) // accept fails, now and later
	select {
	case err := <-ended:
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NotErrorIs(t, err, status.ErrServerClosed)
	case <-time.After(time.Second):
		t.Fatal("Serve does not return the error of accept")
	}
}
