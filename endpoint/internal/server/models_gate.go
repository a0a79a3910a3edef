package server

import (
	"context"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/internal/ended"
)

// gate counts changes of the catalog and stops them while a successor adopts it. The zero value is open.
type gate struct {
	mu      sync.Mutex
	running int
	shut    chan struct{} // closed when the gate opens or is left; nil while it is open
	idle    chan struct{} // closed when no change runs; nil unless freeze waits
	left    bool          // a successor serves
}

// enter begins a change. It waits while the gate is shut, and fails with [status.ErrLeaving] if a successor serves.
func (g *gate) enter(ctx context.Context) error {
	for {
		if err := ended.Cause(ctx); err != nil {
			return err
		}
		g.mu.Lock()
		shut := g.shut
		switch {
		case g.left:
			g.mu.Unlock()
			return status.ErrLeaving
		case shut == nil:
			g.running++
			g.mu.Unlock()
			return nil
		}
		g.mu.Unlock()
		select {
		case <-shut:
		case <-ctx.Done():
		}
	}
}

// exit ends a change.
func (g *gate) exit() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
	if g.running == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// close shuts the gate and waits until no change runs. If ctx ends first, the gate is open again.
func (g *gate) close(ctx context.Context) error {
	g.mu.Lock()
	g.shut = make(chan struct{})
	var idle chan struct{}
	if g.running > 0 {
		idle = make(chan struct{})
		g.idle = idle
	}
	g.mu.Unlock()
	if idle == nil {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		g.open(false)
		return ended.Cause(ctx)
	}
}

// open lets waiting changes run, or refuses them if a successor serves.
func (g *gate) open(left bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left, g.idle = left, nil
	close(g.shut)
	g.shut = nil
}
