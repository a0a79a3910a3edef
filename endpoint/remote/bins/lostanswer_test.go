package bins_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// deafProxy passes connections on to a server. From the moment on in which a client writes certain bytes, that client
// hears nothing any more, though the server gets what it writes.
type deafProxy struct {
	address string
	deaf    chan struct{} // closed at that moment
	once    sync.Once
	shut    atomic.Bool // new connections are refused
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

// pass copies what see lets through.
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

// cut ends all connections.
func (p *deafProxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.conns {
		_ = conn.Close()
	}
	p.conns = nil
}

// TestTakeThatIsNotAnswered loses the answer to a take that the server has made. The repeated take is in conflict with
// it. Where the server knows, the items are handed out; where it was restarted and has forgotten, the taker is told
// that nobody knows: never are items gone without a word.
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
				js, err := jetstream.New(straight)
				require.NoError(t, err)
				require.Eventually(t, func() bool { // what the take left is over, and its id with it
					try, cancel := context.WithTimeout(ctx, 2*time.Second) // a request may be lost with the server
					defer cancel()
					stream, err := js.Stream(try, "BINS_test")
					if err != nil {
						return false
					}
					_, err = stream.GetLastMsgForSubject(try, "bin.test.a")
					return errors.Is(err, jetstream.ErrMsgNotFound)
				}, time.Minute, 20*time.Millisecond)
				require.NoError(t, server.Close()) // the ids that it read at its start are forgotten
				server = start()
			}
			proxy.shut.Store(false)
			err = <-taken
			if restart {
				require.ErrorIs(t, err, bins.ErrOutcomeUnknown)
				return
			}
			require.NoError(t, err)
			require.Len(t, items, 2)
			require.Equal(t, "2", string(items[1].Body))
			list, err := writer.List(ctx, ">")
			require.NoError(t, err)
			require.Empty(t, list)
		})
	}
}
