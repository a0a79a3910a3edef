package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// dial returns the connection to the owner. The worker owns it.
func (w *worker) dial(ctx context.Context) (*endpoint.Client, error) {
	if w.client != nil {
		return w.client, nil
	}
	client, err := endpoint.Dial(ctx, endpoint.ClientOptions{
		Socket: socketPath(w.dir), Devices: []driver.Device{w.dev}, Label: "demo " + w.role,
	})
	w.client = client
	return client, err
}

// attach maps the newest version, and then releases the previous one.
func (w *worker) attach(ctx context.Context) (reply, error) {
	start := time.Now()
	client, err := w.dial(ctx)
	if err != nil {
		return reply{}, err
	}
	connected := time.Now()
	h, err := client.Acquire(ctx, modelName)
	if err != nil {
		return reply{}, err
	}
	answer := reply{
		Connect: connected.Sub(start), Took: time.Since(connected), Version: h.Version(), Bytes: h.StateDict().Bytes(),
		Server: h.ServerID(),
	}
	old := w.handle
	w.handle = h
	if old != nil {
		err = old.Close()
	}
	return answer, err
}

// attached returns the handle, or an error if nothing is attached.
func (w *worker) attached() (*endpoint.Handle, error) {
	if w.handle == nil {
		return nil, fmt.Errorf("%w: nothing is attached", driver.ErrInvalid)
	}
	return w.handle, nil
}

// until waits until condition is true, checking it after each change of the handle.
func until(ctx context.Context, h *endpoint.Handle, condition func() bool) error {
	for {
		changed := h.Changed() // before checking, so that no change is missed
		if condition() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// hear waits for the owner's event of a version.
func (w *worker) hear(ctx context.Context, version uint64) (reply, error) {
	h, err := w.attached()
	if err != nil {
		return reply{}, err
	}
	err = until(ctx, h, func() bool { return h.Newest() >= version })
	return reply{Version: h.Version()}, err
}

// reconnect waits until the client has automatically reconnected to a new owner, which has not published the attached
// model.
func (w *worker) reconnect(ctx context.Context, server string) (reply, error) {
	h, err := w.attached()
	if err != nil {
		return reply{}, err
	}
	if err := until(ctx, h, func() bool { return h.State() == endpoint.Orphaned }); err != nil {
		return reply{}, err
	}
	// The handle may change before the connection is established; a request waits for it.
	if _, err := w.client.List(ctx); err != nil {
		return reply{}, err
	}
	if got := w.client.ServerID(); got != server {
		return reply{}, fmt.Errorf("connected to owner %q, want %q", got, server)
	}
	return reply{Server: server}, nil
}

// handOver publishes the attached memory to the current owner.
func (w *worker) handOver(ctx context.Context) (reply, error) {
	h, err := w.attached()
	if err != nil {
		return reply{}, err
	}
	start := time.Now()
	version, err := w.client.PublishWith(ctx, modelName, h.StateDict(), endpoint.PublishOptions{Source: "handed over by " + w.role})
	if err != nil {
		return reply{}, err
	}
	return reply{Took: time.Since(start), Version: version}, nil
}

// start computes in the background until stop.
func (w *worker) start(ctx context.Context) (reply, error) {
	sd, err := w.stateDict()
	if err != nil {
		return reply{}, err
	}
	if w.loop != nil {
		return reply{}, errors.New("already computing")
	}
	w.loop = startLoop(ctx, sd)
	return reply{}, nil
}

// stop ends the loop of start. At least one run begins after the call.
func (w *worker) stop() (reply, error) {
	if w.loop == nil {
		return reply{}, errors.New("not computing")
	}
	l := w.loop
	w.loop = nil
	l.end()
	if l.err != nil {
		return reply{}, l.err
	}
	return reply{Runs: l.runs, Result: newResult(l.first)}, nil
}
