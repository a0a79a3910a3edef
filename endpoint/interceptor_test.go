package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// seen records calls of interceptors.
type seen struct {
	mu    sync.Mutex
	lines []string
}

func (s *seen) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

func (s *seen) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := s.lines
	s.lines = nil
	return lines
}

// noting returns an interceptor that records each call before and after it.
func (s *seen) noting(name string) endpoint.Interceptor {
	return func(next endpoint.Invoke) endpoint.Invoke {
		return func(ctx context.Context, call *endpoint.Invocation) error {
			s.note("%s %s %s", name, call.Kind, call.Endpoint)
			err := next(ctx, call)
			s.note("%s %s %s ended %v", name, call.Kind, call.Endpoint, err != nil)
			return err
		}
	}
}

// plainly returns an interceptor that runs one function.
func plainly(do func(ctx context.Context, call *endpoint.Invocation, next endpoint.Invoke) error) endpoint.Interceptor {
	return func(next endpoint.Invoke) endpoint.Invoke {
		return func(ctx context.Context, call *endpoint.Invocation) error { return do(ctx, call, next) }
	}
}

type interceptedKey struct{}

// interceptedFunctions report the values that an interceptor added to their context, and create tensors.
func interceptedFunctions(t *testing.T) *endpoint.Registry {
	t.Helper()
	dev := fixture.Device(t)
	r := endpoint.NewRegistry()
	word := func(ctx context.Context) string {
		text, _ := ctx.Value(interceptedKey{}).(string)
		return text
	}
	require.NoError(t, endpoint.Register(r, "word", func(ctx context.Context, n int) (string, error) { return word(ctx), nil }))
	require.NoError(t, endpoint.Register(r, "as task", func(ctx context.Context, n int) (string, error) { return word(ctx), nil }, endpoint.AsTask()))
	require.NoError(t, endpoint.RegisterStream(r, "words", func(ctx context.Context, n int) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for range n {
				if !yield(word(ctx), nil) {
					return
				}
			}
		}
	}))
	require.NoError(t, endpoint.Register(r, "tensor", func(context.Context, int) (*tensor.Tensor, error) { return fixture.Filled(dev, 8, 1) }))
	require.NoError(t, endpoint.Register(r, "managed", func(context.Context, int) (*tensor.Tensor, error) { return fixture.Filled(dev, 8, 1) }, endpoint.Managed()))
	require.NoError(t, endpoint.Register(r, "wait", func(ctx context.Context, _ int) (int, error) {
		<-ctx.Done()
		return 0, context.Cause(ctx)
	}))
	return r
}

// intercepted returns a server and a client over the socket, each with interceptors.
func intercepted(t *testing.T, server, client []endpoint.Interceptor) (*endpoint.Server, *endpoint.Client) {
	t.Helper()
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: interceptedFunctions(t), Interceptors: server, Logger: fixture.Discard()})
	c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{
		Socket: s.Socket(), OverSocket: true, Devices: fixture.DriversOf(fixture.Device(t)), Interceptors: client, Label: "caller",
	})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return s, c
}

func TestInterceptorOrder(t *testing.T) {
	drivertest.Leaks(t)
	var s seen
	_, c := intercepted(t, []endpoint.Interceptor{s.noting("s1"), s.noting("s2")}, []endpoint.Interceptor{s.noting("c1"), s.noting("c2")})
	nested := func(kind, name string, inner ...string) []string {
		lines := []string{}
		for _, who := range []string{"c1", "c2", "s1", "s2"} {
			lines = append(lines, who+" "+kind+" "+name)
		}
		lines = append(lines, inner...)
		for _, who := range []string{"s2", "s1", "c2", "c1"} {
			lines = append(lines, who+" "+kind+" "+name+" ended false")
		}
		return lines
	}
	for _, name := range []string{"word", "as task"} {
		_, err := endpoint.Call[string](t.Context(), c, name, 1)
		require.NoError(t, err)
		require.Equal(t, nested("call", name), s.take())
	}
	for range endpoint.Stream[string](t.Context(), c, "words", 3) {
		s.note("item")
	}
	lines := s.take() // the server's side ends after everything was sent
	require.Equal(t, []string{"c1 stream words", "c2 stream words", "s1 stream words", "s2 stream words"}, lines[:4])
	require.ElementsMatch(t, nested("stream", "words", "item", "item", "item"), lines)

	info, err := c.Submit(t.Context(), "word", 1)
	require.NoError(t, err)
	_, err = info.Wait(t.Context())
	require.NoError(t, err)
	require.ElementsMatch(t, nested("submit", "word", "s1 task word", "s2 task word", "s2 task word ended false", "s1 task word ended false"), s.take())

	// An unknown function, and one with invalid arguments.
	_, err = endpoint.Call[string](t.Context(), c, "nothing", 1)
	require.ErrorIs(t, err, endpoint.ErrNoEndpoint)
	require.Equal(t, []string{"c1 call nothing", "c2 call nothing", "c2 call nothing ended true", "c1 call nothing ended true"}, s.take())
	_, err = endpoint.Call[string](t.Context(), c, "word", "text")
	require.Error(t, err)
	require.Len(t, s.take(), 8)
}

// collected records values of interceptors on several goroutines.
type collected[T any] struct {
	mu   sync.Mutex
	list []T
}

func (n *collected[T]) add(item T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, item)
}

// take returns the values added since the last call.
func (n *collected[T]) take() []T {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := n.list
	n.list = nil
	return list
}

func TestInterceptorInvocation(t *testing.T) {
	drivertest.Leaks(t)
	var seen collected[endpoint.Invocation]
	var arguments collected[any]
	note := plainly(func(ctx context.Context, call *endpoint.Invocation, next endpoint.Invoke) error {
		seen.add(*call)
		in, err := call.Argument()
		arguments.add(in)
		return errors.Join(err, next(ctx, call))
	})
	s, c := intercepted(t, []endpoint.Interceptor{note}, []endpoint.Interceptor{note})
	_, err := endpoint.Call[string](t.Context(), c, "word", int8(7))
	require.NoError(t, err)
	require.Equal(t, []any{int8(7), 7}, arguments.take(), "as the caller has it, and as the function gets it")
	calls := seen.take()
	own, theirs := calls[0], calls[1]
	require.True(t, own.Client)
	require.False(t, theirs.Client)
	require.Equal(t, s.ID(), own.Peer.Server)
	require.Equal(t, "caller", theirs.Peer.Label)
	require.NotZero(t, theirs.Peer.Session)
	for _, p := range []endpoint.Peer{own.Peer, theirs.Peer} {
		require.NotZero(t, p.PID)
	}
	_, err = endpoint.Call[string](t.Context(), s, "word", 7) // the server's own call
	require.NoError(t, err)
	calls = seen.take()
	require.Len(t, calls, 1)
	require.Equal(t, own.Peer.PID, calls[0].Peer.PID)
}

// Context values reach the function in every kind of call, and metadata is transmitted.
func TestInterceptorContext(t *testing.T) {
	drivertest.Leaks(t)
	_, c := intercepted(t, []endpoint.Interceptor{plainly(func(ctx context.Context, call *endpoint.Invocation, next endpoint.Invoke) error {
		if call.Kind != endpoint.KindTask { // has the values of its submission
			ctx = context.WithValue(ctx, interceptedKey{}, call.Metadata["word"])
		}
		return next(ctx, call)
	})}, []endpoint.Interceptor{plainly(func(ctx context.Context, call *endpoint.Invocation, next endpoint.Invoke) error {
		call.Metadata["word"] = "from " + call.Kind.String()
		return next(ctx, call)
	})})
	for _, name := range []string{"word", "as task"} {
		got, err := endpoint.Call[string](t.Context(), c, name, 1)
		require.NoError(t, err)
		require.Equal(t, "from call", got)
	}
	for got, err := range endpoint.Stream[string](t.Context(), c, "words", 2) {
		require.NoError(t, err)
		require.Equal(t, "from stream", got)
	}
	info, err := c.Submit(t.Context(), "word", 1)
	require.NoError(t, err)
	_, err = info.Wait(t.Context())
	require.NoError(t, err)
	var got string
	require.NoError(t, info.Result(t.Context(), &got))
	require.Equal(t, "from submit", got)
}

// An interceptor that refuses sends its error by code, and nothing runs.
func TestInterceptorRefuses(t *testing.T) {
	drivertest.Leaks(t)
	refusal := endpoint.NewError("quota", "not today")
	refuse := plainly(func(context.Context, *endpoint.Invocation, endpoint.Invoke) error { return refusal })
	s, remote := intercepted(t, []endpoint.Interceptor{refuse}, nil)
	_, local := intercepted(t, nil, []endpoint.Interceptor{refuse})
	for _, c := range []endpoint.Caller{remote, s, local} {
		for kind, err := range map[string]error{
			"call":    c.Call(t.Context(), "word", "no number, which nobody looks at", nil),
			"submit":  func() error { _, err := c.Submit(t.Context(), "word", 1); return err }(),
			"managed": func() error { _, err := endpoint.CallManaged[any](t.Context(), c, "managed", 1); return err }(),
			"stream": func() error {
				for _, err := range endpoint.Stream[string](t.Context(), c, "words", 1) {
					return err
				}
				return nil
			}(),
		} {
			var app *endpoint.Error
			require.ErrorAs(t, err, &app, kind)
			require.Equal(t, "quota", app.Code(), kind)
		}
		tasks, err := c.Tasks(t.Context(), endpoint.TaskFilter{})
		require.NoError(t, err)
		require.Empty(t, tasks)
	}
}

// An interceptor that replaces an outcome releases the function's result, at the server and at the client.
func TestInterceptorChangesOutcome(t *testing.T) {
	late := errors.New("after all not")
	spoil := plainly(func(ctx context.Context, call *endpoint.Invocation, next endpoint.Invoke) error {
		if err := next(ctx, call); err != nil {
			return err
		}
		return late
	})
	panics := plainly(func(ctx context.Context, call *endpoint.Invocation, next endpoint.Invoke) error {
		if err := next(ctx, call); err != nil {
			return err
		}
		panic("after all not")
	})
	for name, c := range map[string]struct{ server, client []endpoint.Interceptor }{
		"server": {[]endpoint.Interceptor{spoil}, nil}, "client": {nil, []endpoint.Interceptor{spoil}},
		"server panics": {[]endpoint.Interceptor{panics}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			drivertest.Leaks(t)
			_, client := intercepted(t, c.server, c.client)
			out, err := endpoint.Call[*tensor.Tensor](t.Context(), client, "tensor", 1)
			require.ErrorContains(t, err, "after all not")
			require.Nil(t, out)
			_, err = endpoint.CallManaged[*tensor.Tensor](t.Context(), client, "managed", 1)
			require.ErrorContains(t, err, "after all not")
			proctest.Eventually(t, fixture.WaitLimit, "no references are left", func() bool {
				objects, err := client.Objects(t.Context())
				return err == nil && len(objects) == 0
			})
			_, err = client.Submit(t.Context(), "wait", 1)
			require.ErrorContains(t, err, "after all not")
			proctest.Eventually(t, fixture.WaitLimit, "the task that nobody knows is cancelled", func() bool {
				tasks, err := client.Tasks(t.Context(), endpoint.TaskFilter{States: []endpoint.TaskState{endpoint.TaskPending, endpoint.TaskRunning}})
				return err == nil && len(tasks) == 0
			})
		})
	}
}

// Misuse of an interceptor is an error of the call.
func TestInterceptorMisuse(t *testing.T) {
	drivertest.Leaks(t)
	idle := plainly(func(context.Context, *endpoint.Invocation, endpoint.Invoke) error { return nil })
	twice := plainly(func(ctx context.Context, call *endpoint.Invocation, next endpoint.Invoke) error {
		return errors.Join(next(ctx, call), next(ctx, call))
	})
	_, c := intercepted(t, []endpoint.Interceptor{idle}, nil)
	_, err := endpoint.Call[*tensor.Tensor](t.Context(), c, "tensor", 1)
	require.ErrorContains(t, err, "without a successful call of next")
	_, c = intercepted(t, nil, []endpoint.Interceptor{idle})
	_, err = endpoint.Call[*tensor.Tensor](t.Context(), c, "tensor", 1)
	require.ErrorContains(t, err, "without a successful call of next")
	_, c = intercepted(t, []endpoint.Interceptor{twice}, nil)
	_, err = endpoint.Call[*tensor.Tensor](t.Context(), c, "tensor", 1)
	require.ErrorContains(t, err, "runs once")

	_, c = intercepted(t, nil, []endpoint.Interceptor{twice}) // a client may repeat the request
	x, err := endpoint.Call[*tensor.Tensor](t.Context(), c, "tensor", 1)
	require.NoError(t, err)
	require.NoError(t, x.Close())
	left := 0
	for range endpoint.Stream[string](t.Context(), c, "words", 5) { // no item follows after the reader has left
		left++
		break
	}
	require.Equal(t, 1, left)

	for _, list := range [][]endpoint.Interceptor{{nil}, {func(endpoint.Invoke) endpoint.Invoke { return nil }}} {
		_, err = endpoint.NewServer(endpoint.ServerOptions{Socket: proctest.SocketPath(t), Interceptors: list})
		require.ErrorIs(t, err, endpoint.ErrConfiguration)
		_, err = endpoint.NewClient(endpoint.ClientOptions{Socket: proctest.SocketPath(t), Interceptors: list})
		require.ErrorIs(t, err, endpoint.ErrConfiguration)
	}
}

func TestInterceptorPanics(t *testing.T) {
	drivertest.Leaks(t)
	for _, where := range []endpoint.InvocationKind{endpoint.KindCall, endpoint.KindSubmit, endpoint.KindStream, endpoint.KindTask} {
		_, c := intercepted(t, []endpoint.Interceptor{plainly(func(ctx context.Context, call *endpoint.Invocation, next endpoint.Invoke) error {
			if call.Kind == where {
				panic("an interceptor")
			}
			return next(ctx, call)
		})}, nil)
		failed := map[endpoint.InvocationKind]error{}
		_, failed[endpoint.KindCall] = endpoint.Call[string](t.Context(), c, "word", 1)
		for _, err := range endpoint.Stream[string](t.Context(), c, "words", 1) {
			failed[endpoint.KindStream] = err
		}
		var job *endpoint.Task
		if job, failed[endpoint.KindSubmit] = c.Submit(t.Context(), "word", 1); failed[endpoint.KindSubmit] == nil {
			info, err := job.Wait(t.Context())
			require.NoError(t, err)
			failed[endpoint.KindTask] = info.Err()
		}
		for kind, err := range failed {
			if kind == where {
				require.ErrorContains(t, err, "panic", "%s", kind)
				continue
			}
			require.NoError(t, err, "%s", kind)
		}
		require.NotEmpty(t, c.ServerID(), "the connection goes on")
	}
}

// An interceptor that waits ends when the caller leaves, and one that ends the context ends the function.
func TestInterceptorSeesEnd(t *testing.T) {
	drivertest.Leaks(t)
	began, ended := make(chan struct{}), make(chan error, 1)
	var enough = errors.New("enough")
	_, c := intercepted(t, []endpoint.Interceptor{plainly(func(ctx context.Context, call *endpoint.Invocation, next endpoint.Invoke) error {
		if call.Endpoint == "wait" {
			ctx, cancel := context.WithCancelCause(ctx)
			cancel(enough)
			return next(ctx, call)
		}
		close(began)
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return context.Cause(ctx)
	})}, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-began; cancel(errors.New("the user closed the page")) }()
	_, err := endpoint.Call[string](ctx, c, "word", 1)
	require.ErrorContains(t, err, "closed the page")
	select {
	case err := <-ended:
		require.ErrorContains(t, err, "closed the page")
	case <-time.After(time.Minute):
		require.Fail(t, "the interceptor was not told")
	}
	_, err = endpoint.Call[int](t.Context(), c, "wait", 1)
	require.ErrorContains(t, err, "enough")
}

// A task that an interceptor refuses fails with the code.
func TestInterceptorRefusesTask(t *testing.T) {
	drivertest.Leaks(t)
	_, c := intercepted(t, []endpoint.Interceptor{plainly(func(ctx context.Context, call *endpoint.Invocation, next endpoint.Invoke) error {
		if call.Kind == endpoint.KindTask {
			return endpoint.NewError("late", "not now")
		}
		return next(ctx, call)
	})}, nil)
	job, err := c.Submit(t.Context(), "tensor", 1)
	require.NoError(t, err)
	info, err := job.Wait(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, info.Err(), task.ErrFailed)
	var app *endpoint.Error
	require.ErrorAs(t, info.Err(), &app)
	require.Equal(t, "late", app.Code())
}

// Hostile metadata is refused and the connection continues; accepted metadata reaches the interceptor unchanged.
func TestHostileMetadata(t *testing.T) {
	drivertest.Leaks(t)
	var got collected[endpoint.Metadata]
	s, c := intercepted(t, []endpoint.Interceptor{plainly(func(ctx context.Context, call *endpoint.Invocation, next endpoint.Invoke) error {
		got.add(call.Metadata)
		return next(ctx, call)
	})}, []endpoint.Interceptor{plainly(func(ctx context.Context, call *endpoint.Invocation, next endpoint.Invoke) error {
		call.Metadata["Bad Name"] = "x"
		return next(ctx, call)
	})})
	_, err := endpoint.Call[string](t.Context(), c, "word", 1)
	require.ErrorIs(t, err, endpoint.ErrInvalid, "a client refuses its own")
	require.Empty(t, got.take())

	p := fixture.PolitePeer(t, s.Socket())
	body, err := message.Marshal(message.Call{Endpoint: "word", Args: message.RawMessage{1}})
	require.NoError(t, err)
	many := message.Metadata{}
	for i := range message.MaxMetadata + 1 {
		many[fmt.Sprint("n", i)] = ""
	}
	send := func(m any) wire.Frame {
		request, err := message.Marshal(struct {
			Op   message.Op         `cbor:"1,keyasint"`
			Body message.RawMessage `cbor:"3,keyasint"`
			With any                `cbor:"4,keyasint"`
		}{message.OpCall, body, m})
		require.NoError(t, err)
		p.ID++
		require.NoError(t, p.Conn.Send(wire.KindRequest, p.ID, request))
		frame, err := p.Conn.Receive()
		require.NoError(t, err)
		return frame
	}
	for name, m := range map[string]message.Metadata{
		"too long": {"n": strings.Repeat("x", message.MaxMetadataBytes)}, "too many": many, "malformed": {"a\nb": "x"}, "control": {"n": "a\x00b"},
	} {
		frame := send(m)
		require.Equal(t, wire.KindError, frame.Kind, name)
		var e message.Error
		require.NoError(t, message.Unmarshal(frame.Body, &e))
		require.Equal(t, message.CodeSerialization, e.Code, name)
		require.Equal(t, "bounds", e.Type, name)
	}
	require.Empty(t, got.take())
	require.Equal(t, wire.KindResponse, send(message.Metadata{"n": "x"}).Kind)
	require.Equal(t, []endpoint.Metadata{{"n": "x"}}, got.take())
	require.Equal(t, wire.KindResponse, send(message.Metadata{}).Kind)
	request, err := message.Marshal(struct {
		Op   message.Op         `cbor:"1,keyasint"`
		Body message.RawMessage `cbor:"3,keyasint"`
		With []int              `cbor:"4,keyasint"`
	}{message.OpCall, body, []int{1}})
	require.NoError(t, err)
	require.NoError(t, p.Conn.Send(wire.KindRequest, 99, request))
	p.HungUp("metadata")
}
