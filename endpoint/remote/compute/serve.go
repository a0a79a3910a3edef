package compute

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
)

// healthInterval is the minimum time between two updates of grpc.health.v1's Watch.
const healthInterval = time.Second

// GRPCOptions returns options for a grpc.Server that serves only this service: the codec, the message size, goroutines
// that are reused for small requests, and the keep-alive policy that clients of splitlearn-comm need.
func (s *Server) GRPCOptions() []grpc.ServerOption {
	return append(bulk.ServerOptions(),
		grpc.MaxRecvMsgSize(int(s.opts.MessageBytes)+(64<<10)),
		grpc.NumStreamWorkers(uint32(runtime.GOMAXPROCS(0))), // a new goroutine would have to grow its stack for each request
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))
}

// Serve serves this service, grpc.health.v1 and reflection on a listener, which it owns, until ctx ends. Then it
// reports itself as not serving, refuses new requests, waits up to grace for running ones (5 s if it is 0), and
// tears the functions down. opts precede those of GRPCOptions. Without credentials among them, connections are not
// encrypted.
func (s *Server) Serve(ctx context.Context, l net.Listener, grace time.Duration, opts ...grpc.ServerOption) error {
	grace = cmp.Or(grace, 5*time.Second)
	g := grpc.NewServer(append(s.GRPCOptions(), opts...)...)
	s.Register(g)
	h := health.NewServer()
	grpc_health_v1.RegisterHealthServer(g, h)
	reflection.Register(g)

	watching, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		s.KeepHealth(watching, h)
	}()
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	stop()
	<-watched
	h.Shutdown()
	return errors.Join(err, s.stop(g, grace))
}

// stop waits for the requests in flight up to grace and then cancels the rest.
func (s *Server) stop(g *grpc.Server, grace time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), grace, fmt.Errorf("requests did not end within %v", grace))
	defer cancel()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		g.GracefulStop()
	}()
	err := s.Shutdown(ctx)
	if err != nil {
		g.Stop() // this ends GracefulStop too
	}
	select {
	case <-stopped:
	case <-ctx.Done(): // only Watch calls remain
		g.Stop()
		<-stopped
	}
	return err
}

// KeepHealth updates h with the health of the service and of the whole server until ctx ends.
func (s *Server) KeepHealth(ctx context.Context, h *health.Server) {
	tick := time.NewTicker(healthInterval)
	defer tick.Stop()
	for {
		check, cancel := context.WithTimeout(ctx, healthInterval)
		state := grpc_health_v1.HealthCheckResponse_SERVING
		if s.Check(check) != nil {
			state = grpc_health_v1.HealthCheckResponse_NOT_SERVING
		}
		cancel()
		h.SetServingStatus("", state)
		h.SetServingStatus(ServiceName, state)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
