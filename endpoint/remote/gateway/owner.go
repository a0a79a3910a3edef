package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/retry"
)

// attachPause is the delay after a failed attempt to attach, unless the owner was absent.
const attachPause = 2 * time.Second

// ownerLink is the attachment to the owner. It exists before the first owner and across replacements.
type ownerLink struct {
	socket  string
	devices []driver.Device
	log     *slog.Logger
	local   *endpoint.Server // functions of the embedding program; may be nil

	attaches atomic.Uint64 // number of owners attached so far

	functions functionCache

	mu      sync.Mutex
	client  *endpoint.Client // nil before the first owner
	up      bool
	life    context.Context // ends with the current attachment; nil if there is none
	lose    context.CancelCauseFunc
	changed chan struct{}

	end  context.CancelFunc
	done chan struct{}
}

// attachOwner starts to attach and returns immediately.
func attachOwner(c *Config, devices []driver.Device, registry *endpoint.Registry, log *slog.Logger) (*ownerLink, error) {
	o := &ownerLink{socket: c.Owner, devices: devices, log: log, changed: make(chan struct{}), done: make(chan struct{})}
	o.functions.listing = make(chan struct{}, 1)
	if registry != nil {
		if err := o.openLocal(registry); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	o.end = cancel
	if c.Owner == Off {
		close(o.done)
		return o, nil
	}
	go func() {
		defer close(o.done)
		o.keep(ctx)
	}()
	return o, nil
}

// openLocal makes the embedding program's functions callable without a socket.
func (o *ownerLink) openLocal(registry *endpoint.Registry) error {
	local, err := endpoint.NewServer(endpoint.ServerOptions{
		Local: true, Devices: o.devices, Registry: registry, Label: "gateway", Logger: o.log, Interceptors: traced(),
	})
	if err != nil {
		return fmt.Errorf("local functions: %w", err)
	}
	o.local = local
	return nil
}

// traced returns the interceptors that pass a request's trace to the functions that it calls.
func traced() []endpoint.Interceptor { return []endpoint.Interceptor{intercept.Tracing(nil)} }

// keep dials until an owner answers and then follows it. After that, the client reconnects automatically.
func (o *ownerLink) keep(ctx context.Context) {
	for ctx.Err() == nil {
		client, err := endpoint.Dial(ctx, endpoint.ClientOptions{
			Socket: o.socket, Devices: o.devices, Wait: true, Label: "sharedtensor-gateway", Logger: o.log, Interceptors: traced(),
		})
		if err != nil {
			if ctx.Err() == nil {
				o.log.Error("cannot attach to the owner", "socket", o.socket, "error", err)
				_ = retry.Sleep(ctx, attachPause) // the loop condition checks ctx
			}
			continue
		}
		o.log.Info("attached to the owner", "socket", client.Socket(), "server_id", client.ServerID())
		o.follow(ctx, client)
		return
	}
}

// follow records when the owner leaves and returns, until ctx ends. The owner counts as attached only while a watch is
// running, because Watch waits for the next owner if this one has left.
func (o *ownerLink) follow(ctx context.Context, client *endpoint.Client) {
	for ctx.Err() == nil {
		watcher, err := client.Watch(ctx)
		if err != nil {
			if !errors.Is(err, endpoint.ErrUnavailable) && ctx.Err() == nil {
				o.log.Warn("cannot follow the owner", "error", err)
			}
			o.set(client, false)
			_ = retry.Sleep(ctx, attachPause/4) // the loop condition checks ctx
			continue
		}
		o.set(client, true)
		for event, err := range watcher.Events(ctx) {
			if err != nil {
				break
			}
			o.note(client, event)
		}
		_ = watcher.Close()
		o.set(client, false)
	}
}

func (o *ownerLink) note(client *endpoint.Client, event endpoint.Event) {
	switch event.Kind {
	case endpoint.EventOwnerLost:
		o.set(client, false)
		o.log.Warn("the owner has left; requests to it fail until it returns", "server_id", event.Server)
	case endpoint.EventOwnerBack:
		o.set(client, true)
		o.log.Info("attached to an owner again", "server_id", event.Server)
	}
}

// set records the state of the attachment and wakes the waiters of Changed.
func (o *ownerLink) set(client *endpoint.Client, up bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.client == client && o.up == up {
		return
	}
	if up {
		o.attaches.Add(1)
		o.life, o.lose = context.WithCancelCause(context.Background())
	} else if o.lose != nil {
		o.lose(fmt.Errorf("%w on %s: it has left", endpoint.ErrUnavailable, o.path()))
	}
	o.client, o.up = client, up
	close(o.changed)
	o.changed = make(chan struct{})
}

// Client implements Owner.
func (o *ownerLink) Client() (*endpoint.Client, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.socket == Off:
		return nil, fmt.Errorf("%w: the gateway runs without an owner", endpoint.ErrUnavailable)
	case o.client == nil:
		return nil, fmt.Errorf("%w: no owner has been reached yet on %s", endpoint.ErrUnavailable, o.path())
	case !o.up:
		return nil, fmt.Errorf("%w on %s: waiting for it to return", endpoint.ErrUnavailable, o.path())
	}
	return o.client, nil
}

// Bind implements Owner.
func (o *ownerLink) Bind(ctx context.Context) (context.Context, context.CancelFunc) {
	o.mu.Lock()
	life := o.life
	o.mu.Unlock()
	bound, cancel := context.WithCancelCause(ctx)
	if life == nil {
		return bound, func() { cancel(nil) }
	}
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return bound, func() { stop(); cancel(nil) }
}

// path returns the socket path for messages.
func (o *ownerLink) path() string {
	if o.socket != "" {
		return o.socket
	}
	path, err := endpoint.SocketPath("", 0)
	if err != nil {
		return "the default socket"
	}
	return path
}

// Caller implements Owner.
func (o *ownerLink) Caller(name string) (endpoint.Caller, error) {
	if o.hasLocal(name) {
		return o.local, nil
	}
	client, err := o.Client()
	if err != nil {
		return nil, err
	}
	return client, nil
}

// hasLocal reports whether the embedding program has the endpoint.
func (o *ownerLink) hasLocal(name string) bool {
	if o.local == nil {
		return false
	}
	list, err := o.local.Endpoints(context.Background())
	return err == nil && slices.ContainsFunc(list, func(e endpoint.EndpointInfo) bool { return e.Name == name })
}

// Callers implements Owner.
func (o *ownerLink) Callers() []endpoint.Caller {
	var all []endpoint.Caller
	if o.local != nil {
		all = append(all, o.local)
	}
	if client, err := o.Client(); err == nil {
		all = append(all, client)
	}
	return all
}

// Changed implements Owner.
func (o *ownerLink) Changed() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed
}

// ServerID implements Owner.
func (o *ownerLink) ServerID() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.client == nil || !o.up {
		return ""
	}
	return o.client.ServerID()
}

// ready returns nil if an owner is attached or the owner is off.
func (o *ownerLink) ready() error {
	o.mu.Lock()
	up := o.up
	o.mu.Unlock()
	if up || o.socket == Off {
		return nil
	}
	return fmt.Errorf("%w on %s", endpoint.ErrUnavailable, o.path())
}

// close ends the attachment.
func (o *ownerLink) close() error {
	o.end()
	<-o.done
	o.mu.Lock()
	client := o.client
	o.client, o.up = nil, false
	if o.lose != nil {
		o.lose(fmt.Errorf("%w: the gateway has stopped", endpoint.ErrUnavailable))
	}
	o.mu.Unlock()
	var errs []error
	if client != nil {
		errs = append(errs, client.Close())
	}
	if o.local != nil {
		errs = append(errs, o.local.Close())
	}
	return errors.Join(errs...)
}
