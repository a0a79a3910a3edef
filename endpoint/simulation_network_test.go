package endpoint

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// simNetwork carries the frames between the clients and the server of a simulation. It delays them, in order for each
// direction, and cuts connections.
type simNetwork struct {
	seed   uint64
	relays sync.WaitGroup

	mu       sync.Mutex
	server   *Server // nil without a server
	conns    map[*simConn]struct{}
	dials    uint64
	cutOneIn int  // frames; 0 for none
	calm     bool // no more delays and cuts
}

// simConn is a connection: the network's ends of the client's and the server's pipe.
type simConn struct {
	near, far *transport.Pipe
}

// cut ends both pipes. Frames in transit are lost.
func (c *simConn) cut() {
	c.near.Close()
	c.far.Close()
}

func newSimNetwork(seed uint64) *simNetwork {
	return &simNetwork{seed: seed, conns: map[*simConn]struct{}{}}
}

// dial is the Dial of [transport.PipeListener].
func (n *simNetwork) dial(ctx context.Context, hello message.Hello, limits wire.Limits) (*transport.Pipe, message.Hello, error) {
	n.mu.Lock()
	s := n.server
	n.dials++
	number := n.dials
	n.mu.Unlock()
	if s == nil {
		return nil, message.Hello{}, fmt.Errorf("%w: the simulation has no server now", status.ErrUnavailable)
	}
	far, serverHello, err := s.core.Sessions.Connect(ctx, hello, limits)
	if err != nil {
		return nil, message.Hello{}, err
	}
	client, near := transport.NewPipe(limits, s.core.Limits.Wire)
	c := &simConn{near: near, far: far}
	n.mu.Lock()
	n.conns[c] = struct{}{}
	n.mu.Unlock()
	n.relays.Go(func() { n.relay(c, near, far, rand.New(rand.NewPCG(n.seed, 2*number))) })
	n.relays.Go(func() { n.relay(c, far, near, rand.New(rand.NewPCG(n.seed, 2*number+1))) })
	return client, serverHello, nil
}

// relay forwards frames in one direction until one side has ended.
func (n *simNetwork) relay(c *simConn, from, to *transport.Pipe, rng *rand.Rand) {
	defer func() {
		n.mu.Lock()
		delete(n.conns, c)
		n.mu.Unlock()
		from.Close()
		to.Close()
	}()
	for {
		frame, err := from.Receive()
		if err != nil {
			n.delay(rng) // the end takes as long as frames sent before it
			return
		}
		n.delay(rng)
		err = to.SendStorages(frame, transfer.InProcessStorages(frame.Files))
		frame.Files.Close()
		if err != nil {
			return
		}
		if n.cuts(rng) {
			c.cut()
			return
		}
	}
}

// delay waits for the transit time of a frame: usually that of a socket, sometimes that of a stopped process.
func (n *simNetwork) delay(rng *rand.Rand) {
	d := time.Duration(10_000 + rng.IntN(300_000))
	switch chance := rng.IntN(1000); {
	case n.isCalm():
	case chance < 5:
		d += time.Duration(rng.IntN(500)) * time.Millisecond
	case chance < 80:
		d += time.Duration(rng.IntN(5_000)) * time.Microsecond
	}
	time.Sleep(d)
}

// cutFrames cuts a connection after one of the given number of frames.
func (n *simNetwork) cutFrames(oneIn int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cutOneIn = oneIn
}

// cuts reports whether to cut a connection after a frame.
func (n *simNetwork) cuts(rng *rand.Rand) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cutOneIn > 0 && !n.calm && rng.IntN(n.cutOneIn) == 0
}

func (n *simNetwork) isCalm() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calm
}

// calmDown ends delays and cuts.
func (n *simNetwork) calmDown() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calm = true
}

// use makes s the server that clients find; nil for none.
func (n *simNetwork) use(s *Server) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.server = s
}

// cutSome cuts each connection with the given chance.
func (n *simNetwork) cutSome(rng *rand.Rand, chance float64) (count int) {
	n.mu.Lock()
	var conns []*simConn
	for c := range n.conns {
		if chance >= 1 || rng.Float64() < chance {
			conns = append(conns, c)
		}
	}
	n.mu.Unlock()
	for _, c := range conns {
		c.cut()
	}
	return len(conns)
}
