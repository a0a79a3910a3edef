package bins_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// lossyProxy forwards the protocol between clients and a NATS server. It silently drops client messages on the subjects
// that lose selects, as if a server was killed while it held them.
type lossyProxy struct {
	address string
	mu      sync.Mutex
	lose    func(subject string) bool // nil drops nothing
	lost    []string                  // subjects of dropped messages
}

func startLossyProxy(t *testing.T, to string) *lossyProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	p := &lossyProxy{address: "nats://" + l.Addr().String()}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() { _, _ = io.Copy(client, server); _ = client.Close() }()
			go func() { p.pass(server, client); _ = server.Close() }()
		}
	}()
	return p
}

// pass forwards the NATS protocol: lines, and after each publish line a payload whose size is the last word of the
// line.
func (p *lossyProxy) pass(to io.Writer, from io.Reader) {
	for r := bufio.NewReader(from); ; {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		words := strings.Fields(string(line))
		lost := false
		if len(words) > 2 && (words[0] == "PUB" || words[0] == "HPUB") {
			size, err := strconv.Atoi(words[len(words)-1])
			if err != nil {
				return
			}
			body := make([]byte, size+2)
			if _, err := io.ReadFull(r, body); err != nil {
				return
			}
			line, lost = append(line, body...), p.loses(words[1])
		}
		if !lost {
			if _, err := to.Write(line); err != nil {
				return
			}
		}
	}
}

func (p *lossyProxy) loses(subject string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lose == nil || !p.lose(subject) {
		return false
	}
	p.lost = append(p.lost, subject)
	return true
}

// begin drops the messages that lose selects from now on.
func (p *lossyProxy) begin(lose func(subject string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = lose
}

// requireLost requires that n messages were dropped.
func (p *lossyProxy) requireLost(t *testing.T, n int) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Len(t, p.lost, n)
}

// firstOf returns a function that reports true once for each of the subject prefixes.
func firstOf(beginnings ...string) func(string) bool {
	seen := map[string]bool{}
	return func(subject string) bool {
		for _, beginning := range beginnings {
			if strings.HasPrefix(subject, beginning) && !seen[beginning] {
				seen[beginning] = true
				return true
			}
		}
		return false
	}
}

// lossyServer starts a server and returns a store over a lossy proxy and one over a direct connection.
func lossyServer(t *testing.T) (proxy *lossyProxy, lossy, straight *bins.Store, js jetstream.JetStream) {
	t.Helper()
	address := remotetest.FreeAddress(t)
	_, conn := start(t, natslink.ServerOptions{Listen: address})
	proxy = startLossyProxy(t, address)
	over, err := natslink.Connect(proxy.address)
	require.NoError(t, err)
	t.Cleanup(over.Close)
	js, err = jetstream.New(over)
	require.NoError(t, err)
	return proxy, open(t, over, bins.Options{}), open(t, conn, bins.Options{}), js
}

// longContext returns the context of a patient caller. Lost messages must be detected long before it ends.
func longContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Take repeats its first read and its first claim if they are lost.
func TestTakeAsksAgain(t *testing.T) {
	t.Parallel()
	proxy, taker, writer, _ := lossyServer(t)
	ctx := longContext(t)
	for _, body := range []string{"1", "2", "3"} {
		_, err := writer.Append(ctx, "a", text(body))
		require.NoError(t, err)
	}
	proxy.begin(firstOf("$JS.API.DIRECT.GET.", "bin-take."))
	items, err := taker.Take(ctx, "a", bins.TakeOptions{Max: 1})
	require.NoError(t, err)
	require.Equal(t, []string{"1"}, bodies(items))
	proxy.requireLost(t, 2)
}

// A listener reports all changes if it loses its reader and all requests for the next reader of the same name. That
// happens in a cluster if the name belongs to a server that was killed.
func TestListenerLosesItsServer(t *testing.T) {
	t.Parallel()
	proxy, hearing, writer, _ := lossyServer(t)
	ctx := longContext(t)
	for _, bin := range []string{"a", "b"} {
		_, err := writer.Append(ctx, bin, text("1"))
		require.NoError(t, err)
	}
	l, err := hearing.Listen(ctx, ">")
	require.NoError(t, err)
	defer l.Close()

	const create = "$JS.API.CONSUMER.CREATE.BINS_test."
	name := ""
	proxy.begin(func(subject string) bool {
		if rest, is := strings.CutPrefix(subject, create); is {
			asked, _, _ := strings.Cut(rest, ".")
			if name == "" {
				name = asked
			}
			return asked == name
		}
		return false
	})
	forgetReaders(ctx, t, writer)
	_, err = writer.Take(ctx, "b", bins.TakeOptions{})
	require.NoError(t, err)
	time.Sleep(4 * time.Second) // by then the message of the take has expired
	_, err = writer.Append(ctx, "a", text("2"))
	require.NoError(t, err)
	heard := map[string]int{}
	for len(heard) < 2 {
		event, err := nextEvent(ctx, l)
		require.NoError(t, err)
		heard[event.Bin] = event.Items
	}
	require.Equal(t, map[string]int{"a": 2, "b": 0}, heard)
	require.NotEmpty(t, name)
}

// forgetReaders deletes all consumers of the stream.
func forgetReaders(ctx context.Context, t *testing.T, s *bins.Store) {
	t.Helper()
	stream := bins.StreamOf(s)
	names := stream.ConsumerNames(ctx)
	n := 0
	for name := range names.Name() {
		require.NoError(t, stream.DeleteConsumer(ctx, name))
		n++
	}
	require.NoError(t, names.Err())
	require.Positive(t, n)
}

// Ack is repeated if it is lost.
func TestAckAsksAgain(t *testing.T) {
	t.Parallel()
	address := remotetest.FreeAddress(t)
	start(t, natslink.ServerOptions{Listen: address})
	proxy := startLossyProxy(t, address)
	conn, err := natslink.Connect(proxy.address)
	require.NoError(t, err)
	defer conn.Close()
	ctx := longContext(t)
	q, err := bins.OpenQueue(ctx, conn, bins.QueueOptions{Options: bins.Options{Namespace: "test"}})
	require.NoError(t, err)
	_, err = q.Push(ctx, "a", text("1"))
	require.NoError(t, err)
	deliveries, err := q.Pull(ctx, 1)
	require.NoError(t, err)
	proxy.begin(firstOf("$JS.ACK.", "$JS.API.STREAM.INFO."))
	require.NoError(t, deliveries[0].Ack(ctx))
	n, err := q.Len(ctx)
	require.NoError(t, err)
	require.Zero(t, n)
	proxy.requireLost(t, 2)
}
