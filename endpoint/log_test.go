package endpoint_test

import (
	"context"
	stdlog "log"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

// discard returns a logger for tests that cause warnings.
func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// noted is a log handler that records messages.
type noted struct {
	mu   sync.Mutex
	said []string
}

func (n *noted) Enabled(context.Context, slog.Level) bool { return true }
func (n *noted) WithAttrs([]slog.Attr) slog.Handler       { return n }
func (n *noted) WithGroup(string) slog.Handler            { return n }

func (n *noted) Handle(_ context.Context, r slog.Record) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.said = append(n.said, r.Level.String()+" "+r.Message)
	return nil
}

// times returns how often a message was logged.
func (n *noted) times(message string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(n.said), func(s string) bool { return s != message }))
}

// An owner and a client without a logger log on all levels.
func TestLogDefaultLevel(t *testing.T) {
	hostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	log, before, out, flags := new(noted), slog.Default(), stdlog.Writer(), stdlog.Flags()
	slog.SetDefault(slog.New(log)) // package log then writes to it too
	t.Cleanup(func() {
		slog.SetDefault(before)
		stdlog.SetOutput(out)
		stdlog.SetFlags(flags)
	})
	s := serve(t, endpoint.ServerOptions{})
	ctx := context.Background()
	dev := testDevice(t)
	c, publish := publisher(t, s, dev)
	require.NoError(t, publish("m", 1))
	h, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
	require.NoError(t, err)
	require.NoError(t, h.Close())
	require.NoError(t, c.Withdraw(ctx, "m"))
	require.NoError(t, c.Close())
	p := politePeer(t, s.Socket())
	require.NoError(t, p.conn.Send(3, 1, []byte{0xa0})) // a response, which no client sends
	proctest.Eventually(t, waitLimit, "a warning is passed on", func() bool { return log.times("WARN client broke the protocol") == 1 })
	time.Sleep(10 * time.Millisecond)
	log.mu.Lock()
	defer log.mu.Unlock()
	for _, said := range log.said {
		require.Regexp(t, "^(WARN|ERROR) ", said)
	}
}
