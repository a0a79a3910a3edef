package session_test

import (
	"context"
	"log/slog"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

// A server whose process has no free descriptor accepts clients again when one is free.
func TestServerAcceptWithoutDescriptors(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	log := new(fixture.Noted)
	s := fixture.Serve(t, endpoint.ServerOptions{Logger: slog.New(log)})
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer syscall.Close(fd)

	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	restore := func() { require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)) }
	free, err := os.Open(os.DevNull) // the lowest number shows it
	require.NoError(t, err)
	lowest := free.Fd()
	require.NoError(t, free.Close())
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: uint64(lowest), Max: limit.Max}))
	restored := false
	defer func() {
		if !restored {
			restore()
		}
	}()

	require.NoError(t, syscall.Connect(fd, &syscall.SockaddrUnix{Name: s.Socket()}))
	const began, ended = "WARN cannot accept clients for now", "WARN clients are accepted again"
	proctest.Eventually(t, fixture.WaitLimit, "the owner says so", func() bool { return log.Times(began) == 1 })
	time.Sleep(100 * time.Millisecond) // some more attempts
	require.Equal(t, 1, log.Times(began))
	require.Zero(t, log.Times(ended))
	restore()
	restored = true
	proctest.Eventually(t, fixture.WaitLimit, "it goes on", func() bool { return log.Times(ended) == 1 })
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket()})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.Equal(t, 1, log.Times(began))
}
