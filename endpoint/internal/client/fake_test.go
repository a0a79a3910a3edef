package client

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// waitLimit is the timeout for expected events.
const waitLimit = 30 * time.Second

// soon is the time for which a test checks that something does not happen.
const soon = 20 * time.Millisecond

// fakeOwner is the owner's end of a connection. The test reads and writes its frames.
type fakeOwner struct {
	*proctest.OwnerEnd
	t    *testing.T
	conn *Conn // the client's end
}

// newClient returns a client that is not connected.
func newClient() *Client { return New(Config{Log: slog.New(slog.DiscardHandler)}) }

// begin makes the connection the next one of a client. It returns a channel that is closed when requests can use it.
func (w *fakeOwner) begin(c *Client) <-chan struct{} {
	a := &attempt{now: make(chan struct{}), done: make(chan struct{})}
	c.mu.Lock()
	c.attempt = a
	c.work.Add(1)
	c.mu.Unlock()
	go func() {
		defer c.work.Done()
		if err := c.serve(a, w.conn, 0); err != nil {
			c.attemptFailed(a, err)
		}
	}()
	return a.done
}

// use makes the connection the one that a client uses, as after a successful attempt.
func (w *fakeOwner) use(c *Client) {
	w.t.Helper()
	within(w.t, "the connection is used", w.begin(c))
}

// session returns a client that is connected to an owner.
func session(t *testing.T) (*Client, *fakeOwner) {
	t.Helper()
	c, w := newClient(), acceptedOwner(t)
	t.Cleanup(c.Close)
	w.use(c)
	return c, w
}

// acceptedOwner returns a new connection to the owner "one".
func acceptedOwner(t *testing.T) *fakeOwner { return acceptedBy(t, "one") }

// acceptedBy returns a new connection to an owner.
func acceptedBy(t *testing.T, server string) *fakeOwner {
	t.Helper()
	near, far, err := wire.Pipe(wire.Limits{})
	require.NoError(t, err)
	t.Cleanup(func() { far.Close() })
	features := []string{message.FeatureOffer}
	var greeting sync.WaitGroup
	greeting.Go(func() {
		message.ServerHandshake(far, message.Hello{Server: server, Features: features}, nil)
	})
	conn, err := handshake(context.Background(), near, message.Hello{Features: features})
	require.NoError(t, err)
	greeting.Wait()
	go conn.read()
	t.Cleanup(conn.cut)
	return &fakeOwner{OwnerEnd: &proctest.OwnerEnd{Conn: far, T: t}, t: t, conn: conn}
}

// offered returns an offer that the owner has accepted, and the id of its request.
func (w *fakeOwner) offered(calls int, list ...*engine.Definition) (o *Offer, request uint64) {
	w.t.Helper()
	c := newClient()
	w.use(c)
	offered := offering(w.t.Context(), c, calls, list...)
	request = w.accept(calls)
	made := <-offered
	require.NoError(w.t, made.err)
	w.t.Cleanup(c.Close)
	return made.offer, request
}

// accept accepts the next offer and returns the id of its request.
func (w *fakeOwner) accept(calls int) (request uint64) {
	w.t.Helper()
	request = w.NextRequest(message.OpOffer, nil)
	w.SendFrame(wire.KindResponse, request, message.Offering{Calls: uint64(calls)})
	return request
}

// made is the result of an offer.
type made struct {
	offer *Offer
	err   error
}

// offering starts to offer the functions.
func offering(ctx context.Context, c *Client, calls int, list ...*engine.Definition) <-chan made {
	done := make(chan made, 1)
	go func() {
		o, err := c.Offer(ctx, configOf(calls, list...))
		done <- made{o, err}
	}()
	return done
}

// configOf returns a configuration with the functions.
func configOf(calls int, list ...*engine.Definition) OfferConfig {
	config := OfferConfig{Calls: calls, Endpoints: map[string]*engine.Definition{}}
	for _, d := range list {
		config.Endpoints[d.Name] = d
		config.Infos = append(config.Infos, message.EndpointInfo{Name: d.Name})
	}
	return config
}

// function returns an endpoint without arguments.
func function(name string, run func(ctx context.Context) (any, error)) *engine.Definition {
	return &engine.Definition{
		Name: name, In: reflect.TypeFor[any](), Out: reflect.TypeFor[any](),
		Decode: func(message.RawMessage, []*tensor.Storage) (any, []interface{ Close() error }, error) {
			return new(any), nil, nil
		},
		Invoke: func(ctx context.Context, _ any) (any, error) { return run(ctx) },
	}
}

// blocked returns a function that runs until release is called and ignores its context. began is closed when it starts.
func blocked(name string) (d *engine.Definition, began <-chan struct{}, release func()) {
	runs, wait := make(chan struct{}), make(chan struct{})
	var once sync.Once
	return function(name, func(context.Context) (any, error) {
		close(runs)
		<-wait
		return name, nil
	}), runs, func() { once.Do(func() { close(wait) }) }
}

// answered receives the answer to a call and responds to it.
func (w *fakeOwner) answered(call uint64) message.Answer {
	w.t.Helper()
	a, id := w.answer(call)
	w.SendFrame(wire.KindResponse, id, message.Answered{})
	return a
}

// answer receives the answer to a call. It returns the answer and the id of its request.
func (w *fakeOwner) answer(call uint64) (a message.Answer, id uint64) {
	w.t.Helper()
	id = w.NextRequest(message.OpAnswer, &a)
	require.Equal(w.t, call, a.Call)
	return a, id
}

// declined receives an answer that declines a call.
func (w *fakeOwner) declined(call uint64) {
	w.t.Helper()
	a := w.answered(call)
	require.True(w.t, a.Error.Declines(), "%+v", a)
}

// call sends a call.
func (w *fakeOwner) call(request, number uint64, name string) {
	w.t.Helper()
	w.SendFrame(wire.KindEvent, request, message.OfferEvent{Kind: message.OfferCall, Call: number, Endpoint: name})
}

// cancel sends the cancel of a call.
func (w *fakeOwner) cancel(request, number uint64) {
	w.t.Helper()
	w.SendFrame(wire.KindEvent, request, message.OfferEvent{Kind: message.OfferCancel, Call: number})
}

// closeOffer closes an offer in another goroutine and returns a channel that is closed when Close returns.
func closeOffer(o *Offer) <-chan struct{} {
	closed := make(chan struct{})
	go func() {
		o.Close()
		close(closed)
	}()
	return closed
}

// within waits until a channel is closed.
func within(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(waitLimit):
		require.Fail(t, "did not happen", what)
	}
}

// open checks that a channel stays open for a while.
func open(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
		require.Fail(t, "too early", what)
	case <-time.After(soon):
	}
}
