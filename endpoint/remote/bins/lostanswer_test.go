package bins_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// deafProxy forwards connections to a server. After a client has sent certain bytes, that client receives nothing more,
// while the server still receives what it sends.
type deafProxy struct {
	address string
	deaf    chan struct{} // closed when a client has sent the bytes
	once    sync.Once
	shut    atomic.Bool // refuses new connections
	mu      sync.Mutex
	conns   []net.Conn
}

func startDeafProxy(t *testing.T, to, mark string) *deafProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &deafProxy{address: l.Addr().String(), deaf: make(chan struct{})}
	t.Cleanup(func() { _ = l.Close(); p.cut() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil || p.shut.Load() {
				_ = client.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, client, server)
			p.mu.Unlock()
			var deaf atomic.Bool
			go p.pass(server, client, func(data []byte) bool {
				if bytes.Contains(data, []byte(mark)) {
					p.once.Do(func() { deaf.Store(true); close(p.deaf) })
				}
				return true
			})
			go p.pass(client, server, func([]byte) bool { return !deaf.Load() })
		}
	}()
	return p
}

// pass copies the data for which see returns true.
func (p *deafProxy) pass(to, from net.Conn, see func(data []byte) bool) {
	defer to.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if see(buffer[:n]) {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
}

// cut closes all connections.
func (p *deafProxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.conns {
		_ = conn.Close()
	}
	p.conns = nil
}

// If the answer to a take is lost, the repeated take conflicts with the first one. The taker finds its own claim and
// returns the items, even after a restart of the server.
func TestTakeThatIsNotAnswered(t *testing.T) {
	for name, restart := range map[string]bool{"the server knows": false, "the server was restarted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			dir, address := t.TempDir(), remotetest.FreeAddress(t)
			start := func() *natslink.Server {
				server, err := natslink.Start(natslink.ServerOptions{Store: dir, Listen: address, Logger: slog.New(slog.DiscardHandler)})
				require.NoError(t, err)
				return server
			}
			server := start()
			defer func() { _ = server.Close() }()
			straight, err := natslink.Connect("nats://" + address)
			require.NoError(t, err)
			defer straight.Close()
			writer := open(t, straight, bins.Options{})
			for _, body := range []string{"1", "2"} {
				_, err := writer.Append(ctx, "a", text(body))
				require.NoError(t, err)
			}
			proxy := startDeafProxy(t, address, "Bin-Op: take")
			conn, err := natslink.Connect("nats://" + proxy.address)
			require.NoError(t, err)
			defer conn.Close()
			taker := open(t, conn, bins.Options{})

			var items []bins.Item
			taken := make(chan error, 1)
			go func() {
				var err error
				items, err = taker.Take(ctx, "a", bins.TakeOptions{})
				taken <- err
			}()
			<-proxy.deaf
			require.Eventually(t, func() bool {
				n, err := writer.Count(ctx, "a")
				return err == nil && n == 0
			}, time.Minute, 5*time.Millisecond, "the server has made it")
			proxy.shut.Store(true)
			proxy.cut()
			if restart {
				require.NoError(t, server.Close())
				server = start()
			}
			proxy.shut.Store(false)
			err = <-taken
			require.NoError(t, err)
			require.Len(t, items, 2)
			require.Equal(t, "2", string(items[1].Body))
			list, err := writer.List(ctx, ">")
			require.NoError(t, err)
			require.Empty(t, list)
		})
	}
}
