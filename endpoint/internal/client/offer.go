package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Offer is a set of endpoints whose functions this process, the worker, runs for callers of the owner. Its methods are
// safe for concurrent use.
type Offer struct {
	OfferConfig
	of     *Connector
	engine *engine.Engine

	ctx    context.Context // context of the functions; ends with the offer
	stop   context.CancelCauseFunc
	work   sync.WaitGroup // running functions; Go is called with mu held, until drained
	done   chan struct{}  // closed when the offer has ended
	closed chan struct{}  // closed when the first Close returns
	// patience is the time for which Close waits for an answer of the owner.
	patience time.Duration

	mu      sync.Mutex
	made    *offerRequest // on the current connection; nil while there is none
	running map[callID]context.CancelCauseFunc
	closing bool
	drained bool  // all calls are declined
	err     error // reason for the end of the offer
}

// callID identifies a call. Calls of an earlier connection run until their functions return.
type callID struct {
	conn   *Conn
	number uint64
}

// offerRequest is the request that makes the offer on one connection.
type offerRequest struct {
	conn    *Conn
	done    chan struct{} // closed when the owner has answered, or the connection has ended
	err     error         // set before done is closed
	request uint64        // guarded by the offer's lock; 0 unless the owner has accepted the offer and it was not withdrawn
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
		OfferConfig: config, of: c, done: make(chan struct{}), closed: make(chan struct{}), running: map[callID]context.CancelCauseFunc{}, patience: failTime,
		engine: engine.NewRunner(engine.Config{Log: c.Log, Devices: c.Devices, Limits: status.Limits{Wire: c.Limits}}),
	}
	o.ctx, o.stop = context.WithCancelCause(context.Background())
	return o
}

// Offer offers the endpoints to the owner and returns when the owner has accepted them. The caller closes the offer.
func (c *Connector) Offer(ctx context.Context, config OfferConfig) (*Offer, error) {
	o := c.newOffer(config)
	// Added before the first request, so that each new connection makes the offer.
	if !c.add(o) {
		return nil, status.Closed("the client")
	}
	if err := c.establish(ctx, false, func(conn *Conn) error { return o.begin(ctx, conn) }); err != nil {
		c.remove(o)
		o.endWith(err)
		return nil, err
	}
	return o, nil
}

// resume implements [dependent]: it makes the offer on the new connection. If the owner refuses it, the offer
// ends. If another goroutine is already making the offer, resume returns without an error.
func (o *Offer) resume(ctx context.Context, conn *Conn) error {
	m, first, err := o.bindLink(conn)
	if !first {
		return o.resumed(err)
	}
	o.request(ctx, m)
	select {
	case <-m.done:
	case <-ctx.Done():
	case <-time.After(offerPatience): // the owner still decides; meanwhile the connection serves the rest
		o.of.Go(func() { _ = o.resumed(o.wait(o.of.ctx, m)) }) // an error of the connection is handled where it ended
		return nil
	}
	return o.resumed(o.wait(ctx, m))
}

// offerPatience is the time for which a new connection waits for the owner to accept an offer.
const offerPatience = 2 * time.Second

// resumed handles the outcome of a resume. It returns an error of the connection.
func (o *Offer) resumed(err error) error {
	switch {
	case err == nil || o.hasEnded() || errors.Is(err, errOfferEnded):
		return nil
	case !refused(err) && !errors.Is(err, errNoOffers):
		return err
	}
	o.of.Log.Warn("endpoints could not be offered again", "error", err)
	o.of.remove(o)
	o.endWith(err)
	return nil
}

var errNoOffers = fmt.Errorf("%w: this owner does not accept offers of endpoints; start it with --offers (ServerOptions.Offers)", errors.ErrUnsupported)

// begin makes the offer on a connection, or waits for another goroutine that does. After an error the owner does not
// have the offer.
func (o *Offer) begin(ctx context.Context, conn *Conn) error {
	m, first, err := o.bindLink(conn)
	if m == nil {
		return err
	}
	if first {
		o.request(ctx, m)
	}
	return o.wait(ctx, m)
}

// wait waits for the answer to the request that makes the offer. After an error the owner does not have the offer.
func (o *Offer) wait(ctx context.Context, m *offerRequest) (err error) {
	select {
	case <-m.done:
		err = m.err
	case <-ctx.Done():
		err = ended.Cause(ctx)
	}
	if err != nil {
		o.withdraw(m)
	}
	return err
}

// bindLink makes conn the connection of the offer and returns the request on it. If first is true, the caller must send
// the request. The request is nil if the offer is closed or has ended.
func (o *Offer) bindLink(conn *Conn) (m *offerRequest, first bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closing || o.err != nil {
		return nil, false, o.err
	}
	if o.made != nil && o.made.conn == conn {
		return o.made, false, nil
	}
	if err := conn.reason(); err != nil {
		return nil, false, err
	}
	o.made = &offerRequest{conn: conn, done: make(chan struct{})}
	return o.made, true, nil
}

// request sends the request that makes the offer. It also answers calls that arrive after the offer has ended, because
// their callers wait.
func (o *Offer) request(ctx context.Context, m *offerRequest) {
	finish := func(err error) {
		m.err = err
		close(m.done)
	}
	conn := m.conn
	if !conn.offers {
		finish(errNoOffers)
		return
	}
	request := Request{
		Op: message.OpOffer, Body: message.Offer{Endpoints: o.Infos, Calls: uint64(o.Calls)},
		Item: func(frame wire.Frame) error { return o.event(conn, frame) },
	}
	_, err := conn.start(ctx, request, func(frame wire.Frame, err error) {
		if err == nil && frame.Kind == wire.KindError {
			err = status.RemoteError(frame)
		}
		frame.Files.Close()
		if err == nil {
			err = o.accepted(m, frame.ID)
		}
		finish(err)
	})
	if err != nil {
		finish(err)
	}
}

// accepted records that the owner has accepted the offer. If the worker has left the connection or ended the offer
// meanwhile, it withdraws the offer and returns an error.
func (o *Offer) accepted(m *offerRequest, id uint64) error {
	m.conn.receiver.Listen(1)
	o.mu.Lock()
	wanted := o.made == m && !o.closing && o.err == nil
	m.request = id
	o.mu.Unlock()
	if wanted {
		return nil
	}
	o.withdraw(m)
	return errOfferEnded
}

// errOfferEnded is the error of a request during which the offer left the connection or ended.
var errOfferEnded = fmt.Errorf("%w: the offer ended before the owner accepted it", status.ErrUnavailable)

// withdraw sends the owner a request to remove the offer, and does not wait. Calls that arrive meanwhile are declined
// or answered.
func (o *Offer) withdraw(m *offerRequest) {
	if id := o.release(m); id != 0 {
		m.conn.sendNoReply(Request{Op: message.OpUnwatch, Body: message.Unwatch{Watch: id}})
	}
}

// release unbinds the offer from a connection. It returns the request to withdraw, or 0 if the owner has not answered
// yet. In that case the answer triggers the withdrawal.
func (o *Offer) release(m *offerRequest) (request uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.made == m {
		o.made = nil
	}
	if request = m.request; request != 0 {
		m.request = 0
		m.conn.receiver.Listen(-1)
	}
	return request
}

// hasEnded reports whether the offer is closed or has ended.
func (o *Offer) hasEnded() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closing || o.err != nil
}

// Needsresume implements [dependent]. It returns false if the offer was requested on conn or has ended.
func (o *Offer) needsResume(conn *Conn) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return (o.made == nil || o.made.conn != conn) && !o.closing && o.err == nil
}

var errOwnerLost = fmt.Errorf("%w: the connection to the owner has ended, and no caller waits for the result", context.Canceled)

// lost implements [dependent]: it cancels the functions whose calls arrived on a connection that has ended.
func (o *Offer) lost(conn *Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.made != nil && o.made.conn == conn {
		o.made = nil
	}
	for id, cancel := range o.running {
		if id.conn == conn {
			cancel(errOwnerLost)
		}
	}
}

// end implements [dependent].
func (o *Offer) end() { o.endWith(status.Closed("the offer")) }

// endWith permanently ends the offer, withdraws it and cancels its functions.
func (o *Offer) endWith(err error) {
	o.mu.Lock()
	if o.err != nil {
		o.mu.Unlock()
		return
	}
	o.err = err
	m := o.made
	o.mu.Unlock()
	if m != nil {
		o.withdraw(m)
	}
	o.stop(err)
	close(o.done)
}

// Done is closed when the offer has ended: after Close, with its client, or when a new owner refused it.
func (o *Offer) Done() <-chan struct{} { return o.done }

// Err returns the reason for the end of the offer: [status.ErrClosed], or the owner's refusal. It returns nil before
// the end, also while there is no connection.
func (o *Offer) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// Close withdraws the endpoints. It returns when the running functions have returned and the owner has received their
// results. It does not cancel them; closing the client does. If the owner does not
// answer for 10 seconds, they are cancelled. A second Close waits for the first.
func (o *Offer) Close() {
	o.mu.Lock()
	first, m := !o.closing, o.made
	o.closing = true
	o.mu.Unlock()
	if !first {
		<-o.closed
		return
	}
	defer close(o.closed)
	o.of.remove(o)
	if m != nil {
		if id := o.release(m); id != 0 {
			ctx, cancel := context.WithTimeout(o.ctx, o.patience)                                          // an owner that is stopped does not answer
			_ = m.conn.request(ctx, Request{Op: message.OpUnwatch, Body: message.Unwatch{Watch: id}}, nil) // best effort: the offer ends with the connection
			cancel()
		}
	}
	o.mu.Lock()
	o.drained = true
	o.mu.Unlock()
	o.finish(m)
	o.end()
}

// pingPause is the time between checks of the owner while Close waits for functions.
const pingPause = time.Second

var errOwnerSilent = fmt.Errorf("%w: the owner does not answer while its worker closes", status.ErrUnavailable)

// finish waits for the running functions and their answers. If the owner stops answering, nobody takes those: the functions are
// cancelled.
func (o *Offer) finish(m *offerRequest) {
	ended := make(chan struct{})
	go func() {
		o.work.Wait()
		close(ended)
	}()
	for {
		select {
		case <-ended:
			return
		case <-time.After(pingPause):
		}
		if m != nil && o.silent(m.conn) {
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
