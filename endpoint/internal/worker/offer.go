// Package worker runs functions for the callers of an owner, which a client has offered to it.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/connector"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Offer is the endpoints of a process whose functions others call through the owner: the process is a worker. Its
// methods are safe for concurrent use.
type Offer struct {
	Config
	of     *Offers
	engine *engine.Engine

	ctx  context.Context // of the functions; ends with the offer
	stop context.CancelCauseFunc
	work sync.WaitGroup // functions that run
	done chan struct{}

	mu      sync.Mutex
	link    *link.Link // that it was made on last; nil where the connection is lost
	request uint64     // that made it; 0 until it is answered
	running map[callID]context.CancelCauseFunc
	closing bool
	drained bool  // no call begins any more
	err     error // why it has ended
}

// callID is a call that a worker runs.
type callID struct {
	link   *link.Link
	number uint64
}

// Config is what an offer runs and by what.
type Config struct {
	// Endpoints are the functions by name, Infos describe them to the owner.
	Endpoints map[string]*engine.Definition
	Infos     []message.EndpointInfo
	// Calls is how many run at once; 0 for as many as the owner sends.
	Calls int
}

// Offers are those of one client.
type Offers struct {
	connector.Set[*Offer]
	conn     *connector.Connector
	importer transfer.Importer
	limits   wire.Limits
	log      *slog.Logger
}

// New makes the offers of a client. The caller adds them to the dependents of the connector. The importer has the devices
// on which functions get their arguments, limits bound what they return.
func New(conn *connector.Connector, importer transfer.Importer, limits wire.Limits, log *slog.Logger) *Offers {
	return &Offers{conn: conn, importer: importer, limits: limits, log: log}
}

// Offer has the owner take the endpoints. The caller closes the offer.
func (s *Offers) Offer(ctx context.Context, config Config) (*Offer, error) {
	o := &Offer{
		Config: config, of: s, done: make(chan struct{}), running: map[callID]context.CancelCauseFunc{},
		engine: engine.NewRunner(engine.Config{Log: s.log, Devices: s.importer.Devices, Frame: s.limits}),
	}
	o.ctx, o.stop = context.WithCancelCause(context.Background())
	// The offer is known before it asks on any connection: then whichever comes next takes it up.
	if !s.Add(o) {
		return nil, status.ErrClosed
	}
	for {
		l, err := s.conn.Connected(ctx)
		if err == nil {
			err = o.begin(ctx, l)
		}
		if err == nil {
			return o, nil
		}
		if l == nil || !errors.Is(err, status.ErrUnavailable) || ctx.Err() != nil {
			s.Remove(o)
			o.end(err)
			return nil, err
		}
	}
}

// Resume implements [connector.Dependent]: it makes the offer again. If the owner refuses it, the offer ends.
func (o *Offer) Resume(ctx context.Context, l *link.Link) error {
	err := o.begin(ctx, l)
	if !connector.Refused(err) && !errors.Is(err, errNoOffers) {
		return err
	}
	o.of.log.Warn("endpoints were not offered again", "error", err)
	o.of.Remove(o)
	o.end(err)
	return nil
}

var errNoOffers = fmt.Errorf("%w: this owner takes no offers of endpoints; start it with --offers (ServerOptions.Offers)", errors.ErrUnsupported)

// begin makes the offer on a connection, if that was not done before.
func (o *Offer) begin(ctx context.Context, l *link.Link) error {
	if ask, err := o.turnTo(l); !ask {
		return err
	}
	if !l.Offers {
		o.Lost(l)
		return errNoOffers
	}
	if err := o.ask(ctx, l); err != nil {
		o.Lost(l)
		return err
	}
	return nil
}

// ask makes the offer on a connection. Calls that come are answered whatever becomes of the offer here: their callers
// wait for that.
func (o *Offer) ask(ctx context.Context, l *link.Link) error {
	answered := make(chan error, 1)
	request := link.Request{
		Op: message.OpOffer, Body: message.Offer{Endpoints: o.Infos, Calls: uint64(o.Calls)},
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

// On implements [connector.Dependent]: the offer was made, or is being made, on that connection, or needs none.
func (o *Offer) On(l *link.Link) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.link == l || o.closing || o.err != nil
}

var errOwnerLost = fmt.Errorf("%w: the connection to the owner has ended, and nobody waits for the result", context.Canceled)

// Lost implements [connector.Dependent]: it cancels the functions whose calls came by a connection that is over.
func (o *Offer) Lost(l *link.Link) {
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

// End implements [connector.Dependent].
func (o *Offer) End() { o.end(status.ErrClosed) }

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

// Done is closed when the offer has ended: after Close, with its client, or when a new owner refused it.
func (o *Offer) Done() <-chan struct{} { return o.done }

// Err is why the offer has ended: [status.ErrClosed], or the owner's refusal. Nil while it lasts, also while there is
// no connection.
func (o *Offer) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// Close withdraws the endpoints, waits until the functions that run have returned and their callers have the results,
// and then returns. It does not cancel them; closing the client does. A second Close waits too.
func (o *Offer) Close() {
	o.mu.Lock()
	first, l, request := !o.closing, o.link, o.request
	o.closing = true
	o.mu.Unlock()
	if first {
		o.of.Remove(o)
		if l != nil && request != 0 {
			_ = connector.RequestOn(o.ctx, l, link.Request{Op: message.OpUnwatch, Body: message.Unwatch{Watch: request}}, nil) // else it ends with the connection
			l.Receiver.Listen(-1)
		}
		o.mu.Lock()
		o.drained = true
		o.mu.Unlock()
	}
	o.work.Wait()
	o.end(status.ErrClosed)
}
