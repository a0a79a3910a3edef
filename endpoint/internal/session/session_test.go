package session

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// fakeClient is the state of a client that holds nothing.
type fakeClient struct {
	released, closed atomic.Int64
}

func (*fakeClient) Greeted(*message.Agreement) {}
func (*fakeClient) Uses(uint64) bool           { return false }
func (*fakeClient) Busy() bool                 { return false }
func (*fakeClient) Disconnected()              {}
func (c *fakeClient) Release()                 { c.released.Add(1) }
func (c *fakeClient) Close()                   { c.closed.Add(1) }

// fakeRun is a run, and the reply that it returns.
type fakeRun struct {
	run    func(ctx context.Context, r *Request) error
	encode func(b []byte) ([]byte, error) // nil for an empty message

	ended atomic.Int64
	mu    sync.Mutex
	done  []bool // arguments of Done
}

func (f *fakeRun) Run(ctx context.Context, r *Request) (Reply, error) {
	if f.run != nil {
		if err := f.run(ctx, r); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (f *fakeRun) End() { f.ended.Add(1) }

func (*fakeRun) Size() int                { return 1 }
func (*fakeRun) Attachments() Attachments { return Attachments{} }
func (f *fakeRun) AppendTo(b []byte) ([]byte, error) {
	if f.encode == nil {
		return append(b, 0xa0), nil
	}
	return f.encode(b)
}

func (f *fakeRun) Done(sent bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done = append(f.done, sent)
}

// state returns how often End was called, and the arguments of Done.
func (f *fakeRun) state() (ended int64, done []bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended.Load(), f.done
}

// fixture is a register with one client, whose frames the test sends and receives.
type fixture struct {
	t      *testing.T
	r      *Register
	client *fakeClient
	pipe   *transport.Pipe
}

// connect returns a fixture whose operation runs f in a place.
func connect(t *testing.T, place Place, f *fakeRun, change func(*Config)) *fixture {
	t.Helper()
	x := &fixture{t: t, client: &fakeClient{}}
	limits := status.Limits{Clients: 2, Requests: 4, RequestBytes: 1 << 20, Subscriptions: 4}
	totals := NewTotals(&limits, status.LimitRequests, status.LimitClients, status.LimitRequestTime)
	c := Config{
		Log: slog.New(slog.DiscardHandler), Hello: func() message.Hello { return message.Hello{} }, Limits: limits, Totals: &totals,
		NewClient:  func(*Session) Client { return x.client },
		Operations: map[message.Op]Operation{message.OpPing: {Prepare: func(*Request) (Run, Place, error) { return f, place, nil }}},
	}
	if change != nil {
		change(&c)
	}
	x.r = NewRegister(c)
	x.r.Open()
	var err error
	x.pipe, _, err = x.r.Connect(t.Context(), message.Hello{}, wire.Limits{})
	require.NoError(t, err)
	t.Cleanup(func() {
		x.pipe.Close()
		x.r.Stop()
		select {
		case <-x.r.Done():
		case <-time.After(time.Minute):
			t.Error("a session has not ended")
		}
		require.EqualValues(t, 1, x.client.released.Load())
		require.EqualValues(t, 1, x.client.closed.Load())
	})
	return x
}

func (x *fixture) request(id uint64, op message.Op, timeout time.Duration) {
	x.t.Helper()
	body, err := message.MarshalRequest(op, timeout, nil)
	require.NoError(x.t, err)
	require.NoError(x.t, x.pipe.Send(wire.KindRequest, id, body))
}

// answer receives the answer to a request and returns its error.
func (x *fixture) answer(id uint64) error {
	x.t.Helper()
	f, err := x.pipe.Receive()
	require.NoError(x.t, err)
	require.Equal(x.t, id, f.ID)
	if f.Kind == wire.KindResponse {
		return nil
	}
	require.Equal(x.t, wire.KindError, f.Kind)
	return status.RemoteError(f)
}

var places = map[string]Place{"in order": InOrder, "async": Async, "inline": Inline}

// At each exit a run ends once, and its reply is notified once whether it was sent.
func TestReplyIsSentOnce(t *testing.T) {
	t.Parallel()
	for name, place := range places {
		f := &fakeRun{}
		x := connect(t, place, f, nil)
		for id := range uint64(3) {
			x.request(id+1, message.OpPing, 0)
			require.NoError(t, x.answer(id+1), name)
		}
		x.pipe.Close()
		x.r.Stop()
		<-x.r.Done()
		ended, done := f.state()
		require.EqualValues(t, 3, ended, name)
		require.Equal(t, []bool{true, true, true}, done, name)
		require.EqualValues(t, 3, x.r.Requests.Load())
		require.Zero(t, x.r.Failures.Load())
	}
}

// A run that fails, panics or ends its goroutine gets an error as the answer, and the session continues.
func TestRunFails(t *testing.T) {
	t.Parallel()
	for name, place := range places {
		f := &fakeRun{}
		x := connect(t, place, f, nil)
		f.run = func(context.Context, *Request) error { return status.ErrNotFound }
		x.request(1, message.OpPing, 0)
		require.ErrorIs(t, x.answer(1), status.ErrNotFound, name)
		f.run = func(context.Context, *Request) error { panic("no luck") }
		x.request(2, message.OpPing, 0)
		require.ErrorContains(t, x.answer(2), "no luck", name)
		if place != InOrder {
			f.run = func(context.Context, *Request) error { runtime.Goexit(); return nil }
			x.request(3, message.OpPing, 0)
			require.Error(t, x.answer(3), name)
		}
		f.run = nil
		f.encode = func([]byte) ([]byte, error) { return nil, errors.New("not encodable") }
		x.request(4, message.OpPing, 0)
		require.ErrorContains(t, x.answer(4), "encode the answer", name)
		f.encode = nil
		x.request(5, message.OpPing, 0)
		require.NoError(t, x.answer(5), name)
		_, done := f.state()
		require.Equal(t, []bool{false, true}, done, name)
	}
}

// A cancel frame and a timeout end the context of a run, and the limit of requests in flight applies until it ends.
func TestRunIsCancelled(t *testing.T) {
	t.Parallel()
	for _, place := range []Place{Async, Inline} {
		f := &fakeRun{run: func(ctx context.Context, _ *Request) error { <-ctx.Done(); return context.Cause(ctx) }}
		x := connect(t, place, f, func(c *Config) { c.Limits.Requests = 1 })
		if place == Async {
			x.request(1, message.OpPing, 0)
			x.request(2, message.OpPing, 0)
			require.ErrorIs(t, x.answer(2), status.ErrLimit)
			x.request(1, message.OpPing, 0) // the id is in use: the connection ends
			_, err := x.pipe.Receive()
			require.NoError(t, err, "the error of the request that the end cancels")
			_, err = x.pipe.Receive()
			require.Error(t, err)
			continue
		}
		x.request(1, message.OpPing, 20*time.Millisecond)
		require.ErrorIs(t, x.answer(1), context.DeadlineExceeded)
	}
	f := &fakeRun{run: func(ctx context.Context, _ *Request) error { <-ctx.Done(); return context.Cause(ctx) }}
	x := connect(t, Async, f, nil)
	reason, err := message.Marshal(message.Cancel{Reason: "changed its mind"})
	require.NoError(t, err)
	x.request(7, message.OpPing, 0)
	require.NoError(t, x.pipe.Send(wire.KindCancel, 7, reason))
	require.ErrorContains(t, x.answer(7), "changed its mind")
	require.NoError(t, x.pipe.Send(wire.KindCancel, 7, nil), "it has ended")
}

// Requests that no operation accepts are answered with an error. Invalid frames end the connection.
func TestRequestsRefused(t *testing.T) {
	t.Parallel()
	x := connect(t, InOrder, &fakeRun{}, func(c *Config) {
		c.Operations[message.OpWatch] = Operation{Prepare: func(*Request) (Run, Place, error) { return nil, InOrder, status.ErrPermission }}
	})
	x.request(1, message.OpCall, 0)
	require.ErrorIs(t, x.answer(1), errors.ErrUnsupported)
	x.request(2, message.OpWatch, 0)
	require.ErrorIs(t, x.answer(2), status.ErrPermission)
	require.EqualValues(t, 2, x.r.Failures.Load())
	for name, frame := range map[string]wire.Frame{
		"id 0": {Kind: wire.KindRequest, Body: []byte{0x81, 0x01}}, "kind": {Kind: wire.KindResponse, ID: 1}, "body": {Kind: wire.KindRequest, ID: 1, Body: []byte{0xff}},
	} {
		x := connect(t, InOrder, &fakeRun{}, nil)
		require.NoError(t, x.pipe.Send(frame.Kind, frame.ID, frame.Body))
		f, err := x.pipe.Receive()
		if err == nil { // the reason
			require.Equal(t, wire.KindError, f.Kind, name)
			require.Zero(t, f.ID, name)
			_, err = x.pipe.Receive()
		}
		require.Error(t, err, name)
	}
}

// A goodbye lets requests in flight end, refuses further ones, and then ends the session.
func TestGoodbyeWaitsForRequests(t *testing.T) {
	t.Parallel()
	let := make(chan struct{})
	f := &fakeRun{run: func(context.Context, *Request) error { <-let; return nil }}
	x := connect(t, Async, f, nil)
	x.request(1, message.OpPing, 0)
	require.Eventually(t, func() bool { return x.r.Clients()[0].InFlight.Count() == 1 }, time.Minute, time.Millisecond)
	x.r.Stop()[0].Goodbye(time.Minute)
	frame, err := x.pipe.Receive()
	require.NoError(t, err)
	require.Equal(t, wire.KindGoodbye, frame.Kind)
	x.request(2, message.OpPing, 0)
	require.Error(t, x.answer(2))
	close(let)
	require.NoError(t, x.answer(1))
	_, _, err = x.r.ConnectSelf()
	require.ErrorIs(t, err, status.ErrServerClosing)
}

// A client over the limit is refused, and admitted when another one has left.
func TestClientsLimited(t *testing.T) {
	t.Parallel()
	x := connect(t, InOrder, &fakeRun{}, func(c *Config) { c.Limits.Clients = 1 })
	_, _, err := x.r.Connect(t.Context(), message.Hello{}, wire.Limits{})
	require.ErrorIs(t, err, status.ErrLimit)
	require.EqualValues(t, 1, x.r.Totals.Refusals.Of(status.LimitClients))
	x.r.Stop()
	_, _, err = x.r.Connect(t.Context(), message.Hello{}, wire.Limits{})
	require.ErrorIs(t, err, status.ErrUnavailable)
}
