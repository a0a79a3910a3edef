package server_test

import (
	"context"
	stdlog "log"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

// An owner and a client without a logger log on all levels.
func TestLogDefaultLevel(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	log, before, out, flags := new(fixture.Noted), slog.Default(), stdlog.Writer(), stdlog.Flags()
	slog.SetDefault(slog.New(log)) // package log then writes to it too
	t.Cleanup(func() {
		slog.SetDefault(before)
		stdlog.SetOutput(out)
		stdlog.SetFlags(flags)
	})
	s := fixture.Serve(t, endpoint.ServerOptions{})
	ctx := context.Background()
	dev := fixture.Device(t)
	c, publish := publisher(t, s, dev)
	require.NoError(t, publish("m", 1))
	h, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
	require.NoError(t, err)
	require.NoError(t, h.Close())
	require.NoError(t, c.Withdraw(ctx, "m"))
	require.NoError(t, c.Close())
	p := fixture.PolitePeer(t, s.Socket())
	require.NoError(t, p.Conn.Send(3, 1, []byte{0xa0})) // a response, which no client sends
	proctest.Eventually(t, fixture.WaitLimit, "a warning is passed on", func() bool { return log.Times("WARN client broke the protocol") == 1 })
	time.Sleep(10 * time.Millisecond)
	log.Mu.Lock()
	defer log.Mu.Unlock()
	for _, said := range log.Said {
		require.Regexp(t, "^(WARN|ERROR) ", said)
	}
}
