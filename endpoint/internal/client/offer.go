package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Offer is a set of endpoints whose functions this process, the worker, runs for callers of the owner. Its methods are
// safe for concurrent use.
type Offer struct {
	OfferConfig
	record
	engine *engine.Engine

	ctx    context.Context // context of the functions; ends with the offer
	stop   context.CancelCauseFunc
	work   sync.WaitGroup // running functions; Go is called with the lock held, until drained
	done   chan struct{}  // closed when the offer has ended
	closed chan struct{}  // closed when the first Close returns
	// patience is the time for which Close waits for an answer of the owner.
	patience time.Duration

	// Guarded by the connector's lock.
	request uint64 // id of the accepted request on the connection
	running map[callID]context.CancelCauseFunc
	closing bool
	drained bool // all calls are declined
}

// callID identifies a call. Calls of an earlier connection run until their functions return.
type callID struct {
	conn   *Conn
	number uint64
}

// OfferConfig is the configuration of an offer.
type OfferConfig struct {
	// Endpoints are the functions by name. Infos are their descriptions for the owner.
	Endpoints map[string]*engine.Definition
	Infos     []message.EndpointInfo
	// Calls is the number of functions that run at once; 0 for all that the owner sends.
	Calls int
}

// newOffer returns an offer that was not yet sent to an owner.
func (c *Connector) newOffer(config OfferConfig) *Offer {
	o := &Offer{
		OfferConfig: config, done: make(chan struct{}), closed: make(chan struct{}), running: map[callID]context.CancelCauseFunc{}, patience: failTime,
		engine: engine.NewRunner(engine.Config{Log: c.Log, Devices: c.Devices, Limits: status.Limits{Wire: c.Limits}}),
	}
	o.record = record{of: c, content: o}
	o.ctx, o.stop = context.WithCancelCause(context.Background())
	return o
}

// Offer offers the endpoints to the owner and returns when the owner has accepted them. The caller closes the offer.
func (c *Connector) Offer(ctx context.Context, config OfferConfig) (*Offer, error) {
	o := c.newOffer(config)
	if !c.add(&o.record) {
		return nil, status.Closed("the client")
	}
	if err := c.establish(ctx, false, func(conn *Conn) error { return c.await(ctx, conn, &o.record) }); err != nil {
		c.end(&o.record, err)
		return nil, err
	}
	return o, nil
}

var errNoOffers = fmt.Errorf("%w: this owner does not accept offers of endpoints; start it with --offers (ServerOptions.Offers)", errors.ErrUnsupported)

// askLocked implements [content]. Calls may arrive until the offer has ended, also before the answer.
func (o *Offer) askLocked(conn *Conn) (Request, error) {
	if !conn.offers {
		return Request{}, errNoOffers
	}
	return Request{
		Op: message.OpOffer, Body: message.Offer{Endpoints: o.Infos, Calls: uint64(o.Calls)},
		Item: func(frame wire.Frame) error { return o.event(conn, frame) }, Late: conn.withdrawLateOffer,
	}, nil
}

// acceptLocked implements [content].
func (o *Offer) acceptLocked(frame wire.Frame) (more bool, err error) {
	o.request = frame.ID
	o.conn.receiver.Listen(1)
	return false, nil
}

// refused implements [content]. It ends the offer.
func (o *Offer) refused(err error) {
	o.of.mu.Lock()
	began := o.began
	o.of.mu.Unlock()
	if began {
		o.of.Go(func() { o.of.Log.Warn("endpoints could not be offered again", "error", err) })
	}
	o.of.end(&o.record, err)
}

var errOwnerLost = fmt.Errorf("%w: the connection to the owner has ended, and no caller waits for the result", context.Canceled)

// lostLocked implements [content]. It cancels the functions whose calls arrived on a connection that has ended.
func (o *Offer) lostLocked(conn *Conn) {
	for id, cancel := range o.running {
		if id.conn == conn {
			cancel(errOwnerLost)
		}
	}
}

// endLocked implements [content]. It cancels the functions.
func (o *Offer) endLocked(err error) {
	o.stop(err)
	close(o.done)
}

// release implements [content]. Calls that arrive meanwhile are declined or answered.
func (o *Offer) release(conn *Conn) {
	conn.receiver.Listen(-1)
	conn.withdrawOffer(o.request)
}

// Done is closed when the offer has ended: after Close, with its client, or when a new owner refused it.
func (o *Offer) Done() <-chan struct{} { return o.done }

// Err returns the reason for the end of the offer: [status.ErrClosed], or the owner's refusal. It returns nil before
// the end, also while there is no connection.
func (o *Offer) Err() error {
	o.of.mu.Lock()
	defer o.of.mu.Unlock()
	return o.ended
}

// Close withdraws the endpoints. It returns when the running functions have returned and the owner has received their
// results. It does not cancel them; closing the client does. If the owner does not
// answer for 10 seconds, they are cancelled. A second Close waits for the first.
func (o *Offer) Close() {
	o.of.mu.Lock()
	first, conn, held := !o.closing, o.conn, o.held
	if o.closing = true; first {
		o.of.removeLocked(&o.record)
	}
	o.of.mu.Unlock()
	if !first {
		<-o.closed
		return
	}
	defer close(o.closed)
	if held {
		conn.receiver.Listen(-1)
		ctx, cancel := context.WithTimeout(o.ctx, o.patience)                                               // an owner that is stopped does not answer
		_ = conn.request(ctx, Request{Op: message.OpUnwatch, Body: message.Unwatch{Watch: o.request}}, nil) // best effort: the offer ends with the connection
		cancel()
	}
	o.of.mu.Lock()
	o.drained = true
	o.of.mu.Unlock()
	o.finish(conn)
	o.of.end(&o.record, status.Closed("the offer"))
}

// pingPause is the time between checks of the owner while Close waits for functions.
const pingPause = time.Second

var errOwnerSilent = fmt.Errorf("%w: the owner does not answer while its worker closes", status.ErrUnavailable)

// finish waits for the running functions and their answers. If the owner stops answering, nobody takes those: the functions are
// cancelled.
func (o *Offer) finish(conn *Conn) {
	ended := make(chan struct{})
	go func() {
		o.work.Wait()
		close(ended)
	}()
	for {
		select {
		case <-ended:
			return
		case <-o.of.ctx.Done(): // the client was closed
			o.stop(errClientClosed)
			<-ended
			return
		case <-time.After(pingPause):
		}
		if conn != nil && o.silent(conn) {
			o.stop(errOwnerSilent)
			<-ended
			return
		}
	}
}

// silent reports whether the owner does not answer a ping in time.
func (o *Offer) silent(conn *Conn) bool {
	ctx, cancel := context.WithTimeout(o.ctx, o.patience)
	defer cancel()
	return errors.Is(conn.request(ctx, Request{Op: message.OpPing, Body: message.Ping{}}, nil), context.DeadlineExceeded)
}
