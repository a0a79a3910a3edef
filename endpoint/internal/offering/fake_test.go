package offering

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// The tests run in synctest bubbles: time advances only while all goroutines wait.

// fakeConn records the events that are sent to a worker.
type fakeConn struct {
	mu     sync.Mutex
	events []message.OfferEvent
	closed bool
}

func (c *fakeConn) SendContext(_ context.Context, _ wire.Kind, _ uint64, body []byte, _ ...*os.File) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return os.ErrClosed
	}
	var e message.OfferEvent
	if err := message.UnmarshalPayload(body, &e); err != nil {
		return err
	}
	c.events = append(c.events, e)
	return nil
}

// fakeWorker is a worker whose functions are implemented by the test.
type fakeWorker struct {
	*Worker
	t    *testing.T
	conn *fakeConn
}

// testTable returns a table. Zero limits are replaced by values that no test reaches.
func testTable(c Config) *Table {
	l := &c.Limits
	l.Offers, l.OffersTotal, l.OfferBytes, l.OfferBytesTotal, l.ObjectBytes = 100, 100, 1<<20, 1<<20, 1<<20
	if l.WorkerCalls == 0 {
		l.WorkerCalls = 100
	}
	c.Log, c.Refusals = slog.New(slog.DiscardHandler), status.NewRefusals(status.LimitWorkerCalls, status.LimitWorkerTime)
	c.Taken, c.Withdrawn = func(string) bool { return false }, func(string) {}
	return New(c)
}

// offer adds a worker that offers the endpoints with that number of slots. Names that begin with "stream" are streams.
func (t *Table) offer(tt *testing.T, calls uint64, names ...string) *fakeWorker {
	tt.Helper()
	w := &fakeWorker{t: tt, conn: &fakeConn{}}
	w.Worker = t.NewWorker(w.conn, message.EndpointWorker{PID: 7})
	w.offerMore(1, calls, names...)
	return w
}

func (w *fakeWorker) offerMore(request, calls uint64, names ...string) {
	w.t.Helper()
	in := &message.Offer{Calls: calls}
	for _, name := range names {
		in.Endpoints = append(in.Endpoints, message.EndpointInfo{Name: name, Stream: name[0] == 's'})
	}
	_, err := w.Offer(request, in)
	require.NoError(w.t, err)
	w.Begin(request)
}

// disconnect ends the connection of the worker.
func (w *fakeWorker) disconnect() {
	w.conn.mu.Lock()
	w.conn.closed = true
	w.conn.mu.Unlock()
	w.End()
}

// events waits for all goroutines and returns the events that were sent since the last call.
func (w *fakeWorker) events() []message.OfferEvent {
	synctest.Wait()
	w.conn.mu.Lock()
	defer w.conn.mu.Unlock()
	list := w.conn.events
	w.conn.events = nil
	return list
}

// called returns the number of the only call that was sent.
func (w *fakeWorker) called() uint64 {
	w.t.Helper()
	list := w.events()
	require.Len(w.t, list, 1)
	require.Equal(w.t, message.OfferCall, list[0].Kind)
	return list[0].Call
}

// idle checks that no event was sent.
func (w *fakeWorker) idle() {
	w.t.Helper()
	require.Empty(w.t, w.events())
}

// answer answers a call with the integer 1.
func (w *fakeWorker) answer(call uint64) error {
	return w.Answer(context.Background(), &message.Answer{Call: call, Value: []byte{1}}, nil)
}

// end ends a call of a stream.
func (w *fakeWorker) end(call uint64) error {
	return w.Answer(context.Background(), &message.Answer{Call: call}, nil)
}

// fail ends a call with an error.
func (w *fakeWorker) fail(call uint64, e message.Error) error {
	return w.Answer(context.Background(), &message.Answer{Call: call, Error: &e}, nil)
}

// decline declines a call.
func (w *fakeWorker) decline(call uint64) {
	w.t.Helper()
	require.NoError(w.t, w.fail(call, *message.Decline("full")))
}

// item sends an item of a stream. The returned channel receives the error of the response.
func (w *fakeWorker) item(ctx context.Context, call uint64) <-chan error {
	response := make(chan error, 1)
	go func() {
		response <- w.Answer(ctx, &message.Answer{Call: call, Value: []byte{1}, More: true}, nil)
	}()
	return response
}

// slotsInUse returns the number of slots in use.
func (w *fakeWorker) slotsInUse() int {
	synctest.Wait()
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	return w.running
}

// fakeCall is a call of an endpoint.
type fakeCall struct {
	t     *testing.T
	leave context.CancelFunc
	items chan any // unbuffered: the caller takes an item when the test receives it
	ended chan error
}

// call calls an endpoint, and returns when the call was sent or is waiting.
func (t *Table) call(tt *testing.T, name string) *fakeCall {
	tt.Helper()
	d := t.Lookup(name)
	require.NotNil(tt, d)
	ctx, cancel := context.WithCancel(context.Background())
	c := &fakeCall{t: tt, leave: cancel, items: make(chan any), ended: make(chan error, 1)}
	var in any = &Arguments{}
	go func() {
		defer cancel()
		if d.Stream == nil {
			out, err := d.Invoke(ctx, &in)
			if p, ok := out.(*codec.Payload); ok {
				p.Close()
			}
			c.ended <- err
			return
		}
		c.ended <- d.Stream(ctx, &in, func(item any) error {
			select {
			case c.items <- item:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}()
	synctest.Wait()
	return c
}

// result returns the error of a call that has ended.
func (c *fakeCall) result() error {
	c.t.Helper()
	synctest.Wait()
	select {
	case err := <-c.ended:
		return err
	default:
		require.Fail(c.t, "the call has not ended")
		return nil
	}
}

// waits checks that the call has not ended.
func (c *fakeCall) waits() {
	c.t.Helper()
	synctest.Wait()
	require.Empty(c.t, c.ended)
}

// bubble runs a test in a synctest bubble.
func bubble(t *testing.T, run func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, run)
}

// pass advances the time.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
