package client

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
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
	withdrawn := func(w *fakeOwner, request uint64) {
		w.t.Helper()
		var in message.Unwatch
		w.NextRequest(message.OpUnwatch, &in)
		require.Equal(w.t, request, in.Watch)
	}
	t.Run("before the answer", func(t *testing.T) {
		c, w := session(t)
		ctx, cancel := context.WithCancel(context.Background())
		offered := offering(ctx, c, 1, add)
		request := w.NextRequest(message.OpOffer, nil)
		cancel()
		require.ErrorIs(t, (<-offered).err, context.Canceled)
		w.SendFrame(wire.KindResponse, request, message.Offering{Calls: 1})
		withdrawn(w, request)
		require.Empty(t, All[*Offer](c.Connector))
		w.pings()
	})
	t.Run("at the same moment", func(t *testing.T) {
		for range 50 {
			c, w := session(t)
			ctx, cancel := context.WithCancel(context.Background())
			offered := offering(ctx, c, 1, add)
			request := w.NextRequest(message.OpOffer, nil)
			w.SendFrame(wire.KindResponse, request, message.Offering{Calls: 1})
			cancel()
			if made := <-offered; made.err == nil {
				c.end(&made.offer.record, status.ErrClosed)
			}
			withdrawn(w, request)
			c.Close()
		}
	})
}

// An offer that ends is withdrawn.
func TestOfferEndWithdraws(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	o, request := w.offered(1, add)
	require.True(t, o.of.end(&o.record, status.ErrClosed))
	require.False(t, o.of.end(&o.record, errBroken), "the second time")
	within(t, "the offer has ended", o.Done())
	var in message.Unwatch
	w.NextRequest(message.OpUnwatch, &in)
	require.Equal(t, request, in.Watch)
	require.ErrorIs(t, o.Err(), status.ErrClosed)
	require.Empty(t, All[*Offer](o.of))
}

// An offer that waits for its first answer is sent once on each connection, and its caller waits for the next answer.
func TestOfferSentOnce(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	waits, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	offered := offering(waits, c, 1, add)
	w.NextRequest(message.OpOffer, nil)
	w.Close()
	within(t, "the end of the connection", w.conn.Done)
	next := acceptedOwner(t)
	next.begin(c)
	request := next.accept(1)
	require.NoError(t, (<-offered).err)
	next.pings()
	next.call(request, 1, "add")
	require.Nil(t, next.answered(1).Error)
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
	w.Close()
	require.ErrorIs(t, <-cause, errOwnerLost)
	within(t, "the end of the connection", w.conn.Done)
	used := next.begin(&Client{Connector: o.of})
	request = next.accept(1)
	within(t, "the offer is made", used)
	next.call(request, 1, "add")
	require.Nil(t, next.answered(1).Error)
}

// An owner without the feature receives no request.
func TestOfferUnsupportedByOwner(t *testing.T) {
	drivertest.Leaks(t)
	c, w := session(t)
	w.conn.offers = false
	o, err := c.Offer(t.Context(), configOf(1, add))
	require.Nil(t, o)
	require.ErrorIs(t, err, errNoOffers)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.Empty(t, All[*Offer](c.Connector))
	w.pings()
}

// pings checks that the connection works.
func (w *fakeOwner) pings() {
	w.t.Helper()
	ponged := make(chan struct{})
	_, err := w.conn.start(context.Background(), Request{Op: message.OpPing}, func(frame wire.Frame, err error) error {
		close(ponged)
		return closeFrame(frame, err)
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClient()
		defer c.Close()
		w, used := pipedTo(c)
		<-used
		offered := offering(t.Context(), c, 1, add)
		w.respond(w.request(message.OpOffer))
		o := <-offered
		require.NoError(t, o.err)
		for _, answers := range []bool{true, false} {
			w.pipe.Close()
			synctest.Wait()
			start := time.Now()
			w, used = pipedTo(c)
			request := w.request(message.OpOffer)
			<-used
			require.Equal(t, offerPatience, time.Since(start))
			require.NoError(t, o.offer.Err())
			require.False(t, o.offer.held)
			if answers {
				w.respond(request)
				synctest.Wait()
				require.True(t, o.offer.held)
				continue
			}
			w.refuse(request, message.CodePermissionDenied)
			<-o.offer.Done()
			require.ErrorContains(t, o.offer.Err(), "no")
			require.NoError(t, c.Current().reason())
		}
	})
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

// Closing the client cancels the functions for which Offer.Close waits.
func TestOfferCloseThenClientClose(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	began, cause := make(chan struct{}), make(chan error, 1)
	o, request := w.offered(1, function("wait", func(ctx context.Context) (any, error) {
		close(began)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return nil, ctx.Err()
	}))
	w.call(request, 1, "wait")
	within(t, "the function runs", began)
	closed := closeOffer(o)
	w.NextRequest(message.OpUnwatch, nil) // never answered
	o.of.Close()
	require.ErrorIs(t, <-cause, errClientClosed)
	within(t, "Close", closed)
	require.ErrorIs(t, o.Err(), status.ErrClosed)
}
