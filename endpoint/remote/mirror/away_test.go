package mirror_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
)

// movableName is an address that represents a service's name in DNS. Its connections are forwarded to the host that
// currently has the name.
type movableName struct {
	address string
	to      atomic.Pointer[string]

	mu    sync.Mutex
	conns []net.Conn
}

func newMovableName(t testing.TB, to string) *movableName {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	m := &movableName{address: l.Addr().String()}
	m.to.Store(&to)
	t.Cleanup(func() { _ = l.Close(); m.cut() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go m.pass(in)
		}
	}()
	return m
}

func (m *movableName) pass(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("tcp", *m.to.Load())
	if err != nil {
		return
	}
	defer out.Close()
	m.mu.Lock()
	m.conns = append(m.conns, in, out)
	m.mu.Unlock()
	go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
	_, _ = io.Copy(in, out)
}

// cut closes all connections, as if the host had failed.
func (m *movableName) cut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns {
		_ = c.Close()
	}
	m.conns = nil
}

// If the source moves to another host with the same model and DNS name, a mirror recognizes the model by its digests,
// fetches no tensor again, and follows the versions published there.
func TestSourceMoves(t *testing.T) {
	first, second := modelFile(t, 1), modelFile(t, 2)
	here := remotetest.StartOwner(t, "--file", "m="+first)
	gw := remotetest.StartGateway(t, here.Socket)
	gw.Attached(t)
	name := newMovableName(t, gw.Addresses.HTTP)
	to := remotetest.StartOwner(t)
	dev := remotetest.OpenHost(t)
	target := remotetest.Dial(t, to.Socket, dev)
	told := &events{}
	m := newMirror(t, mirror.Options{Source: "http://" + name.address + "/m", Owner: target, Device: dev, Events: told.add, Stall: 2 * time.Second})
	stop := follow(t, m)
	remotetest.Eventually(t, func() error { return atLeast(told.of(mirror.EventPublished), 1) })

	there := remotetest.StartOwner(t, "--file", "m="+first)
	moved := remotetest.StartGateway(t, there.Socket)
	moved.Attached(t)
	gw.Kill()
	here.Kill()
	name.to.Store(&moved.Addresses.HTTP)
	name.cut()
	remotetest.Eventually(t, func() error { return atLeast(told.of(mirror.EventUnchanged), 1) })
	requireSame(t, target, "m", first)
	require.Less(t, told.of(mirror.EventUnchanged)[0].Result.Moved, int64(64<<10), "a manifest, and no tensor")

	put(t, moved.HTTP()+"/v1/models/m/model.safetensors", second)
	remotetest.Eventually(t, func() error { return atLeast(told.of(mirror.EventPublished), 2) })
	requireSame(t, target, "m", second)
	require.Equal(t, uint64(2), told.of(mirror.EventPublished)[1].Result.Version, "readers here see the next version of one name")
	require.ErrorIs(t, stop(), context.Canceled)
}

func atLeast(list []mirror.Event, n int) error {
	if len(list) < n {
		return fmt.Errorf("%d events, not %d", len(list), n)
	}
	return nil
}

// put uploads a file.
func put(t testing.TB, url, path string) {
	t.Helper()
	body, err := os.ReadFile(path)
	require.NoError(t, err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url, bytes.NewReader(body))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, resp.StatusCode, "%s", answer)
}

// A gateway is stopped until its source and other mirrors have dropped it, while versions are published. It serves its
// old version throughout. When it continues, it fetches only the newest version.
func TestMirrorWasAway(t *testing.T) {
	first, last := modelFile(t, 1), modelFile(t, 9)
	_, natsURL := startNATS(t)
	from := remotetest.StartOwner(t, "--file", "m="+first)
	gw := remotetest.StartGateway(t, from.Socket)
	gw.Attached(t)
	h := startMirrorHost(t, "--nats", natsURL, "--mirror", gw.HTTP()+"/m", "--mirror-lease", "2s")
	h.awaitVersion(t, "1")
	dev := remotetest.OpenHost(t)
	target := remotetest.Dial(t, h.owner.Socket, dev)
	requireSame(t, target, "m", first)

	h.gw.Stop()
	for seed := range int64(3) {
		put(t, gw.HTTP()+"/v1/models/m/model.safetensors", modelFile(t, 5+seed))
	}
	put(t, gw.HTTP()+"/v1/models/m/model.safetensors", last)
	source := remotetest.Dial(t, from.Socket, dev)
	remotetest.Eventually(t, func() error { // the lease has expired, and the intermediate versions have no holders
		info, err := source.Info(t.Context(), "m")
		if err == nil && len(info.Versions) != 1 {
			err = fmt.Errorf("%d versions are kept", len(info.Versions))
		}
		return err
	})
	requireSame(t, target, "m", first)

	h.gw.Continue()
	h.awaitVersion(t, "5")
	requireSame(t, target, "m", last)
	put(t, gw.HTTP()+"/v1/models/m/model.safetensors", first)
	h.awaitVersion(t, "6")
	requireSame(t, target, "m", first)
}
