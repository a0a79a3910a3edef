package gateway

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrDraining is the cause with which waiting requests end when the gateway starts to stop.
var ErrDraining = errors.New("the gateway is stopping")

// Wait returns a context for the part of a request that only waits for an event. The context also ends when the gateway
// starts to drain, with ErrDraining as its cause. The caller calls the function when the request has ended.
func (e *Env) Wait(ctx context.Context) (context.Context, context.CancelFunc) {
	return untilEnd(ctx, e.Serving)
}

// untilEnd returns a context that also ends with serving.
func untilEnd(ctx, serving context.Context) (context.Context, context.CancelFunc) {
	waiting, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(serving, func() { cancel(ErrDraining) })
	return waiting, func() { stop(); cancel(nil) }
}

// lameDuck reports that the gateway is not ready, but keeps serving for the lame-duck period, so that load balancers
// redirect new requests before the listeners close. It returns early if a listener fails.
func (g *Gateway) lameDuck(failed <-chan error) {
	g.notReady()
	if g.config.LameDuck <= 0 {
		return
	}
	g.log.Info("stopping: not ready, and still serving", "for", g.config.LameDuck)
	select {
	case <-time.After(g.config.LameDuck):
	case <-failed:
	}
}

// notReady sets health and readiness to not serving.
func (g *Gateway) notReady() {
	g.draining.Store(true)
	g.health.shutdown()
}

// drain closes the listeners and ends the requests that only wait. Other requests may continue for the drain period and
// are then cancelled.
func (g *Gateway) drain(ctx context.Context) {
	g.notReady()
	g.log.Info("stopping: requests in flight may end", "within", g.config.Drain)
	g.endServing()
	ctx, cancel := context.WithTimeout(ctx, g.config.Drain)
	defer cancel()
	var servers sync.WaitGroup
	if g.httpServer != nil {
		servers.Go(func() {
			if err := g.httpServer.Shutdown(ctx); err != nil {
				g.endRequests()
				_ = g.httpServer.Close() // best effort: the connections end with the process
			}
		})
	}
	if g.grpcServer != nil {
		servers.Go(func() { stopGRPC(ctx, g.grpcServer) })
	}
	servers.Wait()
	g.endRequests()
	if g.adminServer != nil { // it reports the drain until its end
		_ = g.adminServer.Close() // best effort: its connections end with the process
	}
	if g.debug != nil {
		_ = g.debug.Close() // best effort: its listener closes with the process
	}
	g.background.Wait()
}
