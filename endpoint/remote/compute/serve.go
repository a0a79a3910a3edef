package compute

import (
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

// healthInterval is how often Watch of grpc.health.v1 has something new to say at most.
const healthInterval = time.Second

// GRPCOptions returns options for a grpc.Server that has only this service: the codec, the size of messages, goroutines
// that take one small request after the other, and clients that keep their connection alive as those of splitlearn-comm
// do.
func (s *Server) GRPCOptions() []grpc.ServerOption {
	return append(bulk.ServerOptions(),
		grpc.MaxRecvMsgSize(int(s.opts.MessageBytes)+(64<<10)),
		grpc.NumStreamWorkers(uint32(runtime.GOMAXPROCS(0))), // a new goroutine has to grow its stack for each request
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))
}

// Serve answers on a listener, which it takes, with this service, grpc.health.v1 and reflection, until ctx ends. Then
// it is unhealthy, refuses new requests, lets those in flight end for up to grace (5 s where it is 0), and tears the
// functions down. opts go before those of GRPCOptions; without credentials among them everything is in the clear.
func (s *Server) Serve(ctx context.Context, l net.Listener, grace time.Duration, opts ...grpc.ServerOption) error {
	def(&grace, 5*time.Second)
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

// stop lets the requests in flight end, and cuts off what does not.
func (s *Server) stop(g *grpc.Server, grace time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), grace, fmt.Errorf("they did not end within %v", grace))
	defer cancel()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		g.GracefulStop()
	}()
	err := s.Shutdown(ctx)
	if err != nil {
		g.Stop() // which ends GracefulStop too
	}
	select {
	case <-stopped:
	case <-ctx.Done(): // clients that watch something
		g.Stop()
		<-stopped
	}
	return err
}

// KeepHealth tells h about the health of the service, and of the server as a whole, until ctx ends.
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
