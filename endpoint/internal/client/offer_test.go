package client

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// add is a function that returns at once.
var add = function("add", func(context.Context) (any, error) { return 1, nil })

// If a caller leaves while the owner's answer arrives, neither side keeps the offer.
func TestOfferAbandoned(t *testing.T) {
	drivertest.Leaks(t)
	t.Run("before the answer", func(t *testing.T) {
		w := acceptedOwner(t)
		o := newClient().newOffer(configOf(1, add))
		defer o.end()
		ctx, cancel := context.WithCancel(context.Background())
		begun := make(chan error, 1)
		go func() { begun <- o.begin(ctx, w.conn) }()
		request := w.NextRequest(message.OpOffer, nil)
		cancel()
		require.ErrorIs(t, <-begun, context.Canceled)
		w.SendFrame(wire.KindResponse, request, message.Offering{Calls: 1})
		var in message.Unwatch
		w.NextRequest(message.OpUnwatch, &in)
		require.Equal(t, request, in.Watch)
	})
	t.Run("at the same moment", func(t *testing.T) {
		for range 50 {
			w := acceptedOwner(t)
			o := newClient().newOffer(configOf(1, add))
			ctx, cancel := context.WithCancel(context.Background())
			begun := make(chan error, 1)
			go func() { begun <- o.begin(ctx, w.conn) }()
			request := w.NextRequest(message.OpOffer, nil)
			w.SendFrame(wire.KindResponse, request, message.Offering{Calls: 1})
			cancel()
			if <-begun == nil {
				o.end()
			}
			var in message.Unwatch
			w.NextRequest(message.OpUnwatch, &in)
			require.Equal(t, request, in.Watch)
			o.end()
			w.conn.cut()
		}
	})
}

// An offer that ends is withdrawn, also if another goroutine has made it.
func TestOfferEndWithdraws(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	o, request := w.offered(1, add)
	o.endWith(status.ErrClosed)
	within(t, "the offer has ended", o.Done())
	var in message.Unwatch
	w.NextRequest(message.OpUnwatch, &in)
	require.Equal(t, request, in.Watch)
	require.ErrorIs(t, o.Err(), status.ErrClosed)
	require.False(t, o.needsResume(w.conn))
	require.NoError(t, o.resume(context.Background(), w.conn), "it ends alone")
}

// Two goroutines that make the offer on one connection send one request. Both return when the owner has accepted it.
func TestOfferSentOnce(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	o := newClient().newOffer(configOf(1, add))
	defer o.end()
	first, second := make(chan struct{}), make(chan struct{})
	go func() {
		_ = o.begin(context.Background(), w.conn)
		close(first)
	}()
	request := w.NextRequest(message.OpOffer, nil)
	go func() {
		_ = o.begin(context.Background(), w.conn)
		close(second)
	}()
	open(t, "the owner has not answered", second)
	w.SendFrame(wire.KindResponse, request, message.Offering{Calls: 1})
	within(t, "the offer is made", first)
	within(t, "the offer is made", second)
	w.call(request, 1, "add")
	require.Nil(t, w.answered(1).Error)
}

// The end of a caller's wait is not reported as an error of the connection on which the offer is resumed.
func TestOfferAbandonedKeepsConnection(t *testing.T) {
	drivertest.Leaks(t)
	for name, resumesFirst := range map[string]bool{"requested by the caller": false, "requested by the connection": true} {
		t.Run(name, func(t *testing.T) {
			w := acceptedOwner(t)
			o := newClient().newOffer(configOf(1, add))
			defer o.end()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			offered, resumed := make(chan error, 1), make(chan struct{})
			offer := func() { offered <- o.begin(ctx, w.conn) }
			resume := func() {
				defer close(resumed)
				if err := o.resume(context.Background(), w.conn); err != nil {
					t.Error(err)
				}
			}
			var request uint64
			if resumesFirst {
				go resume()
				request = w.NextRequest(message.OpOffer, nil)
				go offer()
			} else {
				go offer()
				request = w.NextRequest(message.OpOffer, nil)
				go resume()
				within(t, "the caller handles the answer", resumed)
			}
			cancel()
			require.ErrorIs(t, <-offered, context.Canceled)
			w.SendFrame(wire.KindResponse, request, message.Offering{Calls: 1})
			w.NextRequest(message.OpUnwatch, nil)
			within(t, "the answer has arrived", resumed)
		})
	}
}

// A second Close returns with the first, and does not affect the calls that arrive until then.
func TestOfferSecondCloseWaits(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	o, request := w.offered(1, add)
	first := closeOffer(o)
	unwatch := w.NextRequest(message.OpUnwatch, nil)
	second := closeOffer(o)
	open(t, "the first Close waits for the owner", second)
	w.call(request, 1, "add") // sent before the owner received the withdrawal
	require.Nil(t, w.answered(1).Error)
	require.NoError(t, o.Err())
	w.SendFrame(wire.KindResponse, unwatch, message.Unwatched{})
	within(t, "the first Close", first)
	within(t, "the second Close", second)
	o.Close()
	require.ErrorIs(t, o.Err(), status.ErrClosed)
}

// Close waits for the running functions and for the owner's response to their results. It does not cancel them.
func TestOfferCloseDrains(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	wait, cause := make(chan struct{}), make(chan error, 1)
	o, request := w.offered(2, add, function("wait", func(ctx context.Context) (any, error) {
		<-wait
		cause <- context.Cause(ctx)
		return 1, nil
	}))
	w.call(request, 1, "wait")
	w.call(request, 2, "add") // calls are accepted in order
	w.answered(2)
	closed := closeOffer(o)
	w.SendFrame(wire.KindResponse, w.NextRequest(message.OpUnwatch, nil), message.Unwatched{})
	w.call(request, 3, "add")
	for { // the call may arrive before Close has read the response
		a := w.answered(3)
		if a.Error != nil {
			require.True(t, a.Error.Declines())
			break
		}
		w.call(request, 3, "add")
	}
	open(t, "a function runs", closed)
	close(wait)
	a, id := w.answer(1)
	require.Nil(t, a.Error)
	require.NoError(t, <-cause)
	open(t, "the owner has not taken the result", closed)
	w.SendFrame(wire.KindResponse, id, message.Answered{})
	within(t, "Close", closed)
}

// The worker pauses before it retries a request to an owner that is not ready.
func TestOfferPausesBeforeRetry(t *testing.T) {
	drivertest.Leaks(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	start := time.Now()
	require.False(t, sleep(ctx, time.Hour))
	require.True(t, sleep(context.Background(), firstPause))
	require.GreaterOrEqual(t, time.Since(start), firstPause)
}

// lost ends the offer on a connection, and its calls. The offer is made again on the next connection.
func TestOfferOnNextConnection(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	began, cause := make(chan struct{}), make(chan error, 1)
	o, request := w.offered(1, add, function("wait", func(ctx context.Context) (any, error) {
		close(began)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return nil, ctx.Err()
	}))
	w.call(request, 1, "wait")
	within(t, "the function runs", began)
	next := acceptedOwner(t)
	require.True(t, o.needsResume(next.conn))
	o.lost(w.conn)
	require.ErrorIs(t, <-cause, errOwnerLost)
	w.answered(1)
	resumed := make(chan error, 1)
	go func() { resumed <- o.resume(context.Background(), next.conn) }()
	request = next.NextRequest(message.OpOffer, nil)
	next.SendFrame(wire.KindResponse, request, message.Offering{Calls: 1})
	require.NoError(t, <-resumed)
	require.False(t, o.needsResume(next.conn))
	next.call(request, 1, "add")
	require.Nil(t, next.answered(1).Error)
}

// An owner without the feature receives no request.
func TestOfferUnsupportedByOwner(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	w.conn.offers = false
	o := newClient().newOffer(configOf(1, add))
	require.True(t, o.of.add(o))
	require.ErrorIs(t, o.begin(context.Background(), w.conn), errNoOffers)
	require.NoError(t, o.resume(context.Background(), w.conn))
	require.ErrorIs(t, o.Err(), errNoOffers)
	require.Empty(t, All[*Offer](o.of))
}

// pings checks that the connection works.
func (w *fakeOwner) pings() {
	w.t.Helper()
	ponged := make(chan struct{})
	_, err := w.conn.start(context.Background(), Request{Op: message.OpPing}, func(frame wire.Frame, err error) {
		frame.Files.Close()
		close(ponged)
	})
	require.NoError(w.t, err)
	w.SendFrame(wire.KindResponse, w.NextRequest(message.OpPing, nil), message.Pong{})
	within(w.t, "a ping", ponged)
	require.NoError(w.t, w.conn.reason())
}

// Each call that arrives while two goroutines close the offer gets one answer: its result, or a decline.
func TestOfferCloseDuringCalls(t *testing.T) {
	drivertest.Leaks(t)
	for range 20 {
		w := acceptedOwner(t)
		o, request := w.offered(0, add)
		const calls = 50
		var sending sync.WaitGroup
		sending.Go(func() {
			for i := range calls {
				w.call(request, uint64(i+1), "add")
			}
		})
		first, second := closeOffer(o), closeOffer(o)
		answered := map[uint64]bool{}
		for unwatched := false; !unwatched || len(answered) < calls; {
			frame := w.NextFrame()
			request, err := message.ParseRequest(frame.Body)
			require.NoError(t, err)
			if request.Op == message.OpUnwatch {
				unwatched = true
				w.SendFrame(wire.KindResponse, frame.ID, message.Unwatched{})
				continue
			}
			var a message.Answer
			require.NoError(t, message.UnmarshalPayload(request.Body, &a))
			require.False(t, answered[a.Call])
			require.True(t, a.Error == nil || a.Error.Declines(), "%+v", a.Error)
			answered[a.Call] = true
			w.SendFrame(wire.KindResponse, frame.ID, message.Answered{})
		}
		sending.Wait()
		within(t, "the first Close", first)
		within(t, "the second Close", second)
		w.conn.cut()
	}
}

// A client that closes sends a goodbye and no answers of the functions that Close cancels.
func TestOfferClosedClientSendsNoAnswers(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	began := make(chan struct{})
	waits := function("wait", func(ctx context.Context) (any, error) {
		close(began)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	offered := make(chan error, 1)
	go func() {
		_, err := c.Connector.Offer(context.Background(), configOf(1, waits))
		offered <- err
	}()
	request := w.NextRequest(message.OpOffer, nil)
	w.SendFrame(wire.KindResponse, request, message.Offering{Calls: 1})
	require.NoError(t, <-offered)
	w.call(request, 1, "wait")
	within(t, "the function runs", began)
	c.Close()
	frame, err := w.Conn.Receive()
	require.NoError(t, err)
	require.Equal(t, wire.KindGoodbye, frame.Kind)
	_, err = w.Conn.Receive()
	require.Error(t, err)
}

// While the owner's program decides about an offer, the new connection serves the rest.
func TestOfferDecidedLate(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	o, _ := w.offered(1, add)
	next := acceptedOwner(t)
	o.lost(w.conn)
	resumed := make(chan error, 1)
	go func() { resumed <- o.resume(context.Background(), next.conn) }()
	request := next.NextRequest(message.OpOffer, nil)
	require.NoError(t, <-resumed)
	require.NoError(t, o.Err())
	require.NoError(t, next.conn.reason())
	next.SendFrame(wire.KindResponse, request, message.Offering{Calls: 1})
	next.call(request, 1, "add")
	require.Nil(t, next.answered(1).Error)

	third := acceptedOwner(t)
	o.lost(next.conn)
	go func() { resumed <- o.resume(context.Background(), third.conn) }()
	request = third.NextRequest(message.OpOffer, nil)
	require.NoError(t, <-resumed)
	third.SendFrame(wire.KindError, request, message.Error{Code: message.CodePermissionDenied, Message: "no"})
	within(t, "the offer ends", o.Done())
	require.ErrorContains(t, o.Err(), "no")
}

// Close does not wait for an owner that is stopped, neither for its answer to the withdrawal nor for its receipt of a result.
func TestOfferCloseOfStoppedOwner(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	cause := make(chan error, 1)
	o, request := w.offered(2, add, function("wait", func(ctx context.Context) (any, error) {
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return nil, ctx.Err()
	}))
	o.patience = 50 * time.Millisecond
	w.call(request, 1, "wait")
	w.call(request, 2, "add")
	w.NextRequest(message.OpAnswer, nil) // never acknowledged
	closed := closeOffer(o)
	w.NextRequest(message.OpUnwatch, nil) // never answered
	require.ErrorIs(t, <-cause, errOwnerSilent)
	w.conn.cut() // the error of the function has its own time limit
	within(t, "Close", closed)
}
