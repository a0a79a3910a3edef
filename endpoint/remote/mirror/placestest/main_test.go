// Package placestest_test mirrors models from third-party servers of buckets and registries. It is a separate module, so
// that these servers are not requirements of the programs.
package placestest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
	"github.com/sharedtensor/sharedtensor/module"
)

func TestMain(m *testing.M) {
	remotetest.Main(m, func() []gateway.Component { return nil })
}

// events collects the events of a mirror.
type events struct {
	mu   sync.Mutex
	list []mirror.Event
}

func (e *events) add(one mirror.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, one)
}

// of returns the events of a kind received so far.
func (e *events) of(kind string) (out []mirror.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, one := range e.list {
		if one.Kind == kind {
			out = append(out, one)
		}
	}
	return out
}

// newMirror returns a mirror that is closed when the test ends.
func newMirror(t testing.TB, options mirror.Options) *mirror.Mirror {
	t.Helper()
	m, err := mirror.New(options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// follow runs Follow until stop is called. stop returns the result of Follow.
func follow(t testing.TB, m *mirror.Mirror) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Follow(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { _ = stop() })
	return stop
}

func digestsOf(t testing.TB, client *endpoint.Client, name string) map[string]module.Digest {
	t.Helper()
	h, err := client.Acquire(t.Context(), name, endpoint.AcquireOptions{})
	require.NoError(t, err)
	defer h.Close()
	digests, err := module.Digests(t.Context(), h.StateDict(), 0)
	require.NoError(t, err)
	return digests
}

// nth returns the nth published result.
func nth(t testing.TB, told *events, n int) *mirror.Result {
	t.Helper()
	remotetest.Eventually(t, func() error {
		if got := len(told.of(mirror.EventPublished)); got <= n {
			return fmt.Errorf("%d versions were published", got)
		}
		return nil
	})
	return told.of(mirror.EventPublished)[n].Result
}

// figureDevices returns devices with new memory and with reused memory.
func figureDevices(b *testing.B) map[string]driver.Device {
	b.Helper()
	dev, err := host.Open(host.Lazy()) // as the command does
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, dev.Close()) })
	pool := host.NewPool(dev, host.PoolOptions{Idle: time.Hour})
	b.Cleanup(func() { require.NoError(b, pool.Close()) })
	return map[string]driver.Device{"first": dev, "again": pool}
}

// pullOnce mirrors a model. undo removes it from the owner.
func pullOnce(b *testing.B, options mirror.Options) (undo func() error, err error) {
	b.Helper()
	m, err := mirror.New(options)
	if err != nil {
		return nil, err
	}
	result, err := m.Pull(b.Context())
	if err != nil {
		return nil, err
	}
	return func() error { return options.Owner.Withdraw(b.Context(), result.Name) }, m.Close()
}
