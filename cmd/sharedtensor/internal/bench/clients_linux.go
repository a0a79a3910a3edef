package bench

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// spareDescriptors is the number of descriptors a process needs in addition to its connections.
const spareDescriptors = 64

// clientProcesses is the number of processes that hold the idle clients.
const clientProcesses = 4

// Clients measures what idle clients cost an owner. Memory is the growth of the owner's resident anonymous memory:
// heap, stacks and the Go runtime, without socket buffers of the kernel and mapped files. Each client has sent one
// request. The floor is a process with the same number of bare connections and one goroutine for each. The ping is sent
// by one more client, in turn with a ping to an owner without other clients.
func Clients(ctx context.Context, o Options) ([]Result, error) {
	count := pick(o.Effort, 1000, 1000, 8)
	o.stage("%d clients", count)
	if have := descriptors(); have < count+spareDescriptors {
		fits := max(0, have-spareDescriptors) / clientProcesses * clientProcesses
		o.note("%d clients instead of %d: a process may have %d files open here (ulimit -n)", fits, count, have)
		if count = fits; count == 0 {
			return nil, nil
		}
	}
	s, err := newStage(ctx, o)
	if err != nil {
		return nil, err
	}
	defer s.close()
	crowded, crowdedSocket, err := s.owner()
	if err != nil {
		return nil, err
	}
	_, quietSocket, err := s.owner()
	if err != nil {
		return nil, err
	}
	memory, err := s.clientMemory(crowded, crowdedSocket, count)
	if err != nil {
		return nil, err
	}
	with, without, err := s.crowdedPing(ctx, crowdedSocket, quietSocket)
	if err != nil {
		return nil, err
	}
	return []Result{
		figure("client-memory", memory.ours, "KiB").over(memory.floor).within(Value, 32),
		figure(fmt.Sprintf("ping-%d-idle", count), µs(with.quiet()), "µs").over(µs(without.quiet())).within(Ratio, 1.1),
	}, nil
}

// growth is in KiB per connection.
type growth struct{ ours, floor float64 }

// clientMemory connects clients to the owner, and the same number of bare connections to a bare server.
func (s *stage) clientMemory(owner *process, socket string, count int) (g growth, err error) {
	bare, err := s.start()
	if err != nil {
		return g, err
	}
	bareSocket := s.socket()
	if _, err := bare.do(order{Do: "accept", Socket: bareSocket}); err != nil {
		return g, err
	}
	clients := make([]*process, clientProcesses)
	for i := range clients {
		if clients[i], err = s.start(); err != nil {
			return g, err
		}
		// The first connection of each kind is not counted, because it includes one-time allocations.
		for _, o := range []order{{Do: "connect", Socket: socket, Count: 1}, {Do: "connect bare", Socket: bareSocket, Count: 1}} {
			if _, err := clients[i].do(o); err != nil {
				return g, err
			}
		}
	}
	each := count / clientProcesses
	g.ours, err = grows(owner, clients, order{Do: "connect", Socket: socket, Count: each})
	if err == nil {
		g.floor, err = grows(bare, clients, order{Do: "connect bare", Socket: bareSocket, Count: each})
	}
	return g, err
}

// grows sends the order to each client and returns the growth of p per connection.
func grows(p *process, clients []*process, o order) (float64, error) {
	before, err := p.do(order{Do: "measure"})
	if err != nil {
		return 0, err
	}
	for _, c := range clients {
		if _, err := c.do(o); err != nil {
			return 0, err
		}
	}
	after, err := p.do(order{Do: "measure"})
	if err != nil {
		return 0, err
	}
	return float64(max(0, after.Anonymous-before.Anonymous)) / 1024 / float64(o.Count*len(clients)), nil
}

// crowdedPing pings both owners in turn.
func (s *stage) crowdedPing(ctx context.Context, crowded, quiet string) (with, without turns, err error) {
	subjects := make([]subject, 2)
	for i, socket := range []string{crowded, quiet} {
		var c *endpoint.Client
		if c, err = s.client(socket); err != nil {
			return nil, nil, err
		}
		subjects[i] = subject{rounds: pingRounds, run: timed(func(ctx context.Context) error {
			_, err := c.Ping(ctx)
			return err
		})}
	}
	all, err := alternate(ctx, pingSchedule(s.options), subjects...)
	if err != nil {
		return nil, nil, err
	}
	return all[0], all[1], nil
}
