package bins_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// fault is a failure at one message of an operation.
type fault int

const (
	none        fault = iota
	killed            // the process ends when the message is sent
	cancelled         // the context ends
	lostRequest       // the message is lost
	lostAnswer        // the server's answer to the message is lost
)

// faultProxy connects one client to a NATS server and injects one fault.
type faultProxy struct {
	address string
	hit     chan struct{} // closed when the fault has occurred
	cancel  func()        // called for the fault cancelled

	mu    sync.Mutex
	kind  fault
	at    int // number of the message at which the fault occurs, from 1
	sent  int // messages from the client since arm
	armed bool
	dead  bool                         // drops everything
	deaf  string                       // subject whose messages do not reach the client
	mute  bool                         // no message reaches the client
	trap  func(subject, answer string) // called for each message of the client, without the lock; nil for none
	conns []net.Conn
	shift time.Duration // added to the server's times
}

func startFaultProxy(t *testing.T, to string) *faultProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	p := &faultProxy{address: "nats://" + l.Addr().String(), hit: make(chan struct{})}
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
			p.mu.Lock()
			p.conns = append(p.conns, client, server)
			p.mu.Unlock()
			go func() { p.pass(client, server, p.fromServer); _ = client.Close() }()
			go func() { p.pass(server, client, p.fromClient); _ = server.Close() }()
		}
	}()
	return p
}

// arm injects the fault at message number at, counted from now on.
func (p *faultProxy) arm(kind fault, at int, cancel func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kind, p.at, p.cancel, p.armed, p.sent = kind, at, cancel, true, 0
}

// disarm ends the operation: no faults occur afterwards.
func (p *faultProxy) disarm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = false
}

// messages returns the number of client messages since arm.
func (p *faultProxy) messages() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent
}

// pass copies the NATS protocol: lines, and payloads whose size is the last word of their line. see reports whether a
// line passes.
func (p *faultProxy) pass(to io.Writer, from io.Reader, see func(words []string) bool) {
	for r := bufio.NewReader(from); ; {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		words := strings.Fields(string(line))
		if len(words) > 2 && (strings.HasSuffix(words[0], "PUB") || strings.HasSuffix(words[0], "MSG")) {
			size, err := strconv.Atoi(words[len(words)-1])
			if err != nil {
				return
			}
			payload := make([]byte, size+2)
			if _, err := io.ReadFull(r, payload); err != nil {
				return
			}
			line = append(line, payload...)
		}
		if see(words) {
			if _, err := to.Write(p.shifted(words, line)); err != nil {
				return
			}
		}
	}
}

func (p *faultProxy) fromServer(words []string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mute && len(words) > 2 && strings.HasSuffix(words[0], "MSG") {
		return false
	}
	return !p.dead && (p.deaf == "" || len(words) < 2 || words[1] != p.deaf)
}

func (p *faultProxy) fromClient(words []string) bool {
	p.mu.Lock()
	trap := p.trap
	p.mu.Unlock()
	if trap != nil && len(words) > 2 && strings.HasSuffix(words[0], "PUB") {
		answer := ""
		if words[0] == "PUB" && len(words) == 4 || words[0] == "HPUB" && len(words) == 5 {
			answer = words[2]
		}
		trap(words[1], answer)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return false
	}
	if !p.armed || len(words) < 3 || !strings.HasSuffix(words[0], "PUB") {
		return true
	}
	answer := ""
	if rest := len(words) - 2; words[0] == "PUB" && rest == 2 || words[0] == "HPUB" && rest == 3 {
		answer = words[2]
	}
	if p.deaf == answer {
		p.deaf = "" // the next request
	}
	if p.sent++; p.sent != p.at {
		return true
	}
	switch p.kind {
	case killed:
		p.dead = true
	case cancelled:
		p.cancel()
	case lostAnswer:
		p.deaf = answer
	}
	close(p.hit)
	return p.kind != lostRequest
}

// scene is one run of an operation with one fault.
type scene struct {
	*testing.T
	ctx      context.Context
	straight *nats.Conn
	conn     *nats.Conn // over the proxy
	name     string     // unique
	proxy    *faultProxy
	kind     fault
	hit      bool
}

// operation is an operation to test with faults.
type operation struct {
	name string
	// prepare returns the operation and a check of its effects. The check receives the operation's error.
	prepare func(s *scene) (run func(ctx context.Context) error, check func(err error))
}

// requireOutcome requires that the operation succeeded, unless its process or context ended.
func (s *scene) requireOutcome(err error) {
	s.Helper()
	if !s.hit || s.kind == lostRequest || s.kind == lostAnswer || s.kind == none {
		require.NoError(s, err)
	}
}

// play runs an operation with a fault at one message and returns the number of messages.
func play(t *testing.T, address string, straight *nats.Conn, op operation, kind fault, at int) int {
	t.Helper()
	ctx, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	proxy := startFaultProxy(t, address)
	conn, err := natslink.Connect(proxy.address)
	require.NoError(t, err)
	defer conn.Close()
	s := &scene{T: t, ctx: ctx, straight: straight, conn: conn, proxy: proxy, kind: kind, name: fmt.Sprintf("%s-%d-%d", op.name, kind, at)}
	run, check := op.prepare(s)
	require.NoError(t, conn.Flush())
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	proxy.arm(kind, at, cancel)
	done := make(chan error, 1)
	go func() { done <- run(running) }()
	select {
	case err = <-done:
	case <-proxy.hit:
		s.hit = true
		if kind == killed {
			conn.Close()
			cancel()
		}
		err = <-done
	}
	select {
	case <-proxy.hit:
		s.hit = true
	default:
	}
	check(err)
	return proxy.messages()
}

// playAll runs the operations with a fault at each of their messages, many concurrently, because most of them wait for
// a timeout.
func playAll(t *testing.T, kind fault, ops []operation) {
	address := remotetest.FreeAddress(t)
	_, conn := start(t, natslink.ServerOptions{Listen: address, MaxMemory: 16 << 30})
	var scenes sync.WaitGroup
	defer scenes.Wait()
	free := make(chan struct{}, 100)
	for _, op := range ops {
		messages := play(t, address, conn, op, none, 0)
		require.NotZero(t, messages, op.name)
		for at := 1; at <= messages; at++ {
			free <- struct{}{}
			scenes.Go(func() {
				defer func() { <-free }()
				t.Run(fmt.Sprintf("%s/%d of %d", op.name, at, messages), func(t *testing.T) {
					play(t, address, conn, op, kind, at)
				})
			})
		}
	}
}

// silence makes the server's messages be lost, or ends that.
func (p *faultProxy) silence(mute bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute = mute
}

var (
	serverTime = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d`)
	ackTime    = regexp.MustCompile(`(\$JS\.ACK\.(?:[^. ]+\.){5})(\d{19})`)
)

// shifted returns a message of the server with its times shifted. Their lengths stay.
func (p *faultProxy) shifted(words []string, line []byte) []byte {
	p.mu.Lock()
	shift := p.shift
	p.mu.Unlock()
	if shift == 0 || len(words) < 3 || !strings.HasSuffix(words[0], "MSG") {
		return line
	}
	line = serverTime.ReplaceAllFunc(line, func(text []byte) []byte {
		at, err := time.Parse("2006-01-02T15:04:05", string(text))
		if err != nil {
			return text
		}
		return []byte(at.Add(shift).Format("2006-01-02T15:04:05"))
	})
	return ackTime.ReplaceAllFunc(line, func(text []byte) []byte {
		parts := ackTime.FindSubmatch(text)
		at, err := strconv.ParseInt(string(parts[2]), 10, 64)
		if err != nil {
			return text
		}
		return fmt.Appendf(nil, "%s%d", parts[1], at+shift.Nanoseconds())
	})
}
