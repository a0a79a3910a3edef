package endpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// OfferOptions say how a client runs the functions that it offers. The zero value is useful.
type OfferOptions struct {
	// Calls is how many run at once; 0 for as many as the owner sends.
	Calls int
}

// Offer is the endpoints of a process whose functions others call through the owner: the process is a worker. Its
// methods are safe for concurrent use.
type Offer struct {
	client    *Client
	engine    *engine.Engine
	endpoints map[string]*engine.Definition
	infos     []message.EndpointInfo
	opts      OfferOptions

	ctx  context.Context // of the functions; ends with the offer
	stop context.CancelCauseFunc
	work sync.WaitGroup // functions that run
	done chan struct{}

	mu      sync.Mutex
	link    *link.Link // that it was made on last; nil where the connection is lost
	request uint64     // that made it; 0 until it is answered
	running map[workerCallID]context.CancelCauseFunc
	closing bool
	drained bool  // no call begins any more
	err     error // why it has ended
}

// workerCallID is a call that a worker runs.
type workerCallID struct {
	link   *link.Link
	number uint64
}

// Offer has the owner take the endpoints that r has now for its own: calls of them from any process come to this one,
// which runs their functions. The owner checks, caches, runs tasks, keeps objects and bounds times as for endpoints of
// its own registry, so the same functions and options do here, but for [CacheKey] and [WritableArguments]. Tensors of
// arguments and results are in place: those of arguments are mapped for reading, and the memory of results is frozen
// and becomes the owner's. It stays when this process ends. A function returns nothing of which it writes the memory
// later. Several processes may offer the same endpoints, described alike: each call goes to the one that has the
// fewest.
//
// The offer lasts until [Offer.Close]. When the connection is lost its endpoints are gone, and the functions that run
// are cancelled: their callers get [ErrWorkerGone]. On the next connection the endpoints are offered again.
//
// Errors: [ErrRegistered] for a name that is taken, [ErrConfiguration] for endpoints that cannot be offered,
// [errors.ErrUnsupported] where the owner takes no offers, [ErrPermission] where it takes none of this client,
// [ErrLimit], and those of the connection.
func (c *Client) Offer(ctx context.Context, r *Registry, opts OfferOptions) (*Offer, error) {
	o, err := newOffer(c, r, opts)
	if err != nil {
		return nil, fmt.Errorf("offer: %w", err)
	}
	// The client knows of the offer before it asks on any connection: then whichever comes next takes it up.
	if !c.addOffer(o) {
		return nil, fmt.Errorf("offer: %w", status.ErrClosed)
	}
	for {
		l, err := c.connected(ctx)
		if err == nil {
			err = o.begin(ctx, l)
		}
		if err == nil {
			return o, nil
		}
		if l == nil || !errors.Is(err, status.ErrUnavailable) || ctx.Err() != nil {
			c.forgetOffer(o)
			o.end(err)
			return nil, fmt.Errorf("offer: %w", err)
		}
	}
}

// newOffer describes what a registry has.
func newOffer(c *Client, r *Registry, opts OfferOptions) (*Offer, error) {
	list := r.list()
	if len(list) == 0 {
		return nil, status.Configuration(fmt.Errorf("%w: the registry has no endpoints", status.ErrInvalid))
	}
	if opts.Calls < 0 {
		return nil, status.Configuration(fmt.Errorf("%w: %d calls at once", status.ErrInvalid, opts.Calls))
	}
	o := &Offer{
		client: c, opts: opts, endpoints: map[string]*engine.Definition{}, done: make(chan struct{}),
		running: map[workerCallID]context.CancelCauseFunc{},
		engine:  engine.NewRunner(engine.Config{Log: c.log, Devices: c.devices, Frame: c.opts.Limits}),
	}
	o.ctx, o.stop = context.WithCancelCause(context.Background())
	for _, d := range list {
		if d.Options.Writable {
			return nil, status.Configuration(fmt.Errorf("endpoint %q: %w: a worker gets its arguments for reading only", d.Name, status.ErrInvalid))
		}
		o.endpoints[d.Name] = d
		o.infos = append(o.infos, d.Info())
	}
	return o, nil
}

var errNoOffers = fmt.Errorf("%w: this owner takes no offers of endpoints; start it with --offers (ServerOptions.Offers)", errors.ErrUnsupported)

// begin makes the offer on a connection, if that was not done before.
func (o *Offer) begin(ctx context.Context, l *link.Link) error {
	if ask, err := o.turnTo(l); !ask {
		return err
	}
	if !l.Offers {
		o.lost(l)
		return errNoOffers
	}
	if err := o.ask(ctx, l); err != nil {
		o.lost(l)
		return err
	}
	return nil
}

// ask makes the offer on a connection. Calls that come are answered whatever becomes of the offer here: their callers
// wait for that.
func (o *Offer) ask(ctx context.Context, l *link.Link) error {
	answered := make(chan error, 1)
	request := link.Request{
		Op: message.OpOffer, Body: message.Offer{Endpoints: o.infos, Calls: uint64(o.opts.Calls)},
		Item: func(frame wire.Frame) error { return o.event(l, frame) },
	}
	l.Receiver.Listen(1)
	_, err := l.Start(ctx, request, func(frame wire.Frame, err error) {
		if err == nil && frame.Kind == wire.KindError {
			err = status.RemoteError(frame)
		}
		frame.Files.Close()
		if err == nil && !o.begun(l, frame.ID) { // given up meanwhile
			l.Tell(link.Request{Op: message.OpUnwatch, Body: message.Unwatch{Watch: frame.ID}})
		}
		answered <- err
	})
	if err == nil {
		select {
		case err = <-answered:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		l.Receiver.Listen(-1)
	}
	return err
}

// turnTo makes the calls of a connection those that count. It is false if they are, or cannot be.
func (o *Offer) turnTo(l *link.Link) (ask bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.link == l || o.closing || o.err != nil {
		return false, o.err
	}
	if err := l.Reason(); err != nil {
		return false, err
	}
	o.link, o.request = l, 0
	return true, nil
}

// begun notes the request that was answered. It is false when nobody wants its calls any more.
func (o *Offer) begun(l *link.Link, id uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.link != l || o.closing || o.err != nil {
		return false
	}
	o.request = id
	return true
}

// on reports whether the offer was made, or is being made, on a connection, or needs none.
func (o *Offer) on(l *link.Link) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.link == l || o.closing || o.err != nil
}

var errOwnerLost = fmt.Errorf("%w: the connection to the owner has ended, and nobody waits for the result", context.Canceled)

// lost cancels the functions whose calls came by a connection that is over.
func (o *Offer) lost(l *link.Link) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.link == l {
		o.link, o.request = nil, 0
	}
	for id, cancel := range o.running {
		if id.link == l {
			cancel(errOwnerLost)
		}
	}
}

// end ends the offer for good.
func (o *Offer) end(err error) {
	o.mu.Lock()
	if o.err != nil {
		o.mu.Unlock()
		return
	}
	o.err = err
	o.mu.Unlock()
	o.stop(err)
	close(o.done)
}

// Done is closed when the offer has ended: after Close, with its client, or when a new owner refused it. [Offer.Err]
// says which.
func (o *Offer) Done() <-chan struct{} { return o.done }

// Err is why the offer has ended: [ErrClosed], or the owner's refusal. Nil while it lasts, also while there is no
// connection.
func (o *Offer) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// Close withdraws the endpoints, waits until the functions that run have returned and their callers have the results,
// and then returns. It does not cancel them; closing the client does. A second Close waits too.
func (o *Offer) Close() error {
	o.mu.Lock()
	first, l, request := !o.closing, o.link, o.request
	o.closing = true
	o.mu.Unlock()
	if first {
		o.client.forgetOffer(o)
		if l != nil && request != 0 {
			_ = requestOn(o.ctx, l, link.Request{Op: message.OpUnwatch, Body: message.Unwatch{Watch: request}}, nil) // else it ends with the connection
			l.Receiver.Listen(-1)
		}
		o.mu.Lock()
		o.drained = true
		o.mu.Unlock()
	}
	o.work.Wait()
	o.end(status.ErrClosed)
	return nil
}
