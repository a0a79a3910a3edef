package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// shutdownClients is the number of idle clients of the owner that is shut down.
const shutdownClients = 100

// Shutdown measures the time from the call of Shutdown until an owner with idle clients has released all resources.
func Shutdown(ctx context.Context, o Options) ([]Result, error) {
	count := pick(o.Effort, shutdownClients, shutdownClients, 4)
	o.stage("shutdown")
	s, err := newStage(ctx, o)
	if err != nil {
		return nil, err
	}
	defer s.close()
	owner, err := s.start()
	if err != nil {
		return nil, err
	}
	clients, err := s.start()
	if err != nil {
		return nil, err
	}
	var took samples
	for range pick(o.Effort, 20, 5, 1) {
		socket := s.socket()
		for _, step := range []struct {
			p *process
			o order
		}{
			{owner, order{Do: "serve", Socket: socket}},
			{clients, order{Do: "connect", Socket: socket, Count: count}},
		} {
			if _, err := step.p.do(step.o); err != nil {
				return nil, err
			}
		}
		r, err := owner.do(order{Do: "shutdown"})
		if err != nil {
			return nil, err
		}
		took = append(took, r.Took)
		if _, err := clients.do(order{Do: "hang up"}); err != nil {
			return nil, err
		}
	}
	return []Result{figure(fmt.Sprintf("shutdown-%d-idle", count), ms(took.median()), "ms").within(Value, 100)}, nil
}

// Kill measures the time from a client's SIGKILL until the owner has released the client's references, as seen by
// another client. The floor is the time until the peer of a bare socket of the same process reads the end of the
// stream.
func Kill(ctx context.Context, o Options) ([]Result, error) {
	o.stage("kill")
	s, err := newStage(ctx, o)
	if err != nil {
		return nil, err
	}
	defer s.close()
	owner, socket, err := s.owner()
	if err != nil {
		return nil, err
	}
	if _, err := owner.do(order{Do: "publish", Name: smallName, Tensors: bytesTensors, Bytes: 64 << 20}); err != nil {
		return nil, err
	}
	observer, err := s.client(socket)
	if err != nil {
		return nil, err
	}
	var ours, floor samples
	for range pick(o.Effort, 40, 10, 1) {
		back, ended, err := s.killOne(ctx, observer, socket)
		if err != nil {
			return nil, err
		}
		ours, floor = append(ours, back), append(floor, ended)
	}
	return []Result{figure("kill", ms(ours.median()), "ms").over(ms(floor.median())).within(Value, 100)}, nil
}

// killOne starts a client that acquires the model, and kills it.
func (s *stage) killOne(ctx context.Context, observer *endpoint.Client, socket string) (back, ended time.Duration, err error) {
	victim, err := s.start()
	if err != nil {
		return 0, 0, err
	}
	if _, err := victim.do(order{Do: "acquire", Socket: socket, Name: smallName}); err != nil {
		return 0, 0, err
	}
	n, err := holders(ctx, observer)
	if err != nil {
		return 0, 0, err
	}
	if n != 1 {
		return 0, 0, fmt.Errorf("the owner reports %d holders, want 1", n)
	}
	seen := make(chan time.Time, 1)
	go func() {
		var b [1]byte
		_, _ = victim.bare.Read(b[:]) // nothing is ever sent: Read returns at the end of the stream
		seen <- time.Now()
	}()
	start := time.Now()
	if err := victim.cmd.Process.Kill(); err != nil {
		return 0, 0, err
	}
	for n > 0 {
		if n, err = holders(ctx, observer); err != nil {
			return 0, 0, err
		}
	}
	back = time.Since(start)
	ended = (<-seen).Sub(start)
	victim.kill()
	return back, ended, nil
}

// holders returns the number of sessions that hold the model.
func holders(ctx context.Context, observer *endpoint.Client) (int, error) {
	info, err := observer.Info(ctx, smallName)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, v := range info.Versions {
		n += len(v.Holders)
	}
	return n, nil
}
