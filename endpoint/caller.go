package endpoint

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/client"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Calls makes calls. Accept it in programs that only call, so that a test can implement its two methods or use
// endpointtest.Fake. [Call], [Stub] and [Stream] accept it.
type Calls interface {
	// Call calls an endpoint and decodes its result into out. See [Client.Call].
	Call(ctx context.Context, name string, in, out any) error
	// Stream calls an endpoint that returns a stream of results. See [Client.Stream].
	Stream(ctx context.Context, name string, in any) iter.Seq2[func(out any) error, error]
}

// Tasks submits calls as tasks and finds tasks.
type Tasks interface {
	// Submit starts a call as a task and returns at once.
	Submit(ctx context.Context, name string, in any) (*Task, error)
	// Task returns the task of an id.
	Task(id string) *Task
	// Tasks lists tasks.
	Tasks(ctx context.Context, filter TaskFilter) ([]TaskInfo, error)
	// WatchTasks follows the changes of tasks.
	WatchTasks(ctx context.Context, filter TaskFilter) iter.Seq2[TaskEvent, error]
}

// Objects manages managed objects and references to them.
type Objects interface {
	// ObjectInfo describes a managed object.
	ObjectInfo(ctx context.Context, objectID string) (ObjectInfo, error)
	// Objects lists managed objects and their holders.
	Objects(ctx context.Context, endpoints ...string) ([]ObjectInfo, error)
	// Destroy removes all references to a managed object.
	Destroy(ctx context.Context, objectID string) (ObjectInfo, error)
	// EnsureLive describes a managed object of a given server, or returns why it is stale.
	EnsureLive(ctx context.Context, objectID, serverID string) (ObjectInfo, error)
}

// Caller has all operations on endpoints. It is implemented by [Client], whose owner is another process, by [Server],
// which calls its own endpoints over a connection within the process, and by types that embed one of them. All apply the
// same checks, caching, sharing and errors. Accept the smallest interface that suffices: [Calls], [Tasks] or [Objects].
type Caller interface {
	Calls
	Tasks
	Objects
	// InvalidateCall drops the cached result of a call.
	InvalidateCall(ctx context.Context, name string, in any) (bool, error)
	// InvalidateEndpoint drops all cached results of an endpoint.
	InvalidateEndpoint(ctx context.Context, name string) (int, error)
	// Endpoints lists the endpoints.
	Endpoints(ctx context.Context) ([]EndpointInfo, error)
	// ServerInfo describes the server.
	ServerInfo(ctx context.Context) (ServerInfo, error)
	// keep makes a call and keeps the reference to its managed result.
	keep(ctx context.Context, call client.Call, out any) (*client.Reference, error)
}

var (
	_ Caller = (*Client)(nil)
	_ Caller = (*Server)(nil)
)

// caller implements [Caller] over a client, of another process or of the server's own.
type caller struct {
	conn        *client.Client
	intercept   Invoke        // the client's interceptors; nil for none
	infoTimeout time.Duration // limits ServerInfo
}

// Endpoints implements [Client.Endpoints].
func (c *caller) Endpoints(ctx context.Context) ([]EndpointInfo, error) {
	var got message.EndpointsListed
	if err := c.conn.Request(ctx, client.Request{Op: message.OpEndpoints}, &got); err != nil {
		return nil, fmt.Errorf("endpoints: %w", err)
	}
	list := make([]EndpointInfo, 0, len(got.Endpoints))
	for _, e := range got.Endpoints {
		list = append(list, decodeEndpoint(e))
	}
	return list, nil
}

// ServerInfo implements [Client.ServerInfo].
func (c *caller) ServerInfo(ctx context.Context) (ServerInfo, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.infoTimeout, errInfoTimeout)
	defer cancel()
	var got message.ServerInfo
	if err := c.conn.RequestNow(ctx, client.Request{Op: message.OpServerInfo}, &got); err != nil {
		return ServerInfo{}, fmt.Errorf("server info: %w", err)
	}
	return decodeServerInfo(got), nil
}

// defaultInfoTimeout limits requests for a server's description, because monitoring must not block.
const defaultInfoTimeout = 5 * time.Second

var errInfoTimeout = fmt.Errorf("%w: the owner did not answer within %v: %w", status.ErrUnavailable, defaultInfoTimeout, context.DeadlineExceeded)

// InvalidateCall implements [Client.InvalidateCall].
func (c *caller) InvalidateCall(ctx context.Context, name string, in any) (bool, error) {
	var got message.Invalidated
	if err := c.conn.Ask(ctx, message.OpInvalidateCall, client.Call{Name: name, In: in}, &got); err != nil {
		return false, fmt.Errorf("invalidate call %s: %w", status.Shown(name), err)
	}
	return got.Count > 0, nil
}

// InvalidateEndpoint implements [Client.InvalidateEndpoint].
func (c *caller) InvalidateEndpoint(ctx context.Context, name string) (int, error) {
	var got message.Invalidated
	ask := client.Request{Op: message.OpInvalidateEndpoint, Body: message.InvalidateEndpoint{Endpoint: name}}
	if err := c.conn.Request(ctx, ask, &got); err != nil {
		return 0, fmt.Errorf("invalidate endpoint %s: %w", status.Shown(name), err)
	}
	return int(got.Count), nil
}

// Call is [Calls].Call with a typed result.
func Call[Out any](ctx context.Context, c Calls, name string, in any) (Out, error) {
	var out Out
	if err := checkCaller(c); err != nil {
		return out, fmt.Errorf("call %s: %w", status.Shown(name), err)
	}
	err := c.Call(ctx, name, in, &out)
	return out, err
}

// checkCaller returns [ErrInvalid] if c is nil, also as a nil client or server in the interface.
func checkCaller(c Calls) error {
	switch c := c.(type) {
	case nil:
		return fmt.Errorf("%w: the caller is nil", ErrInvalid)
	case *Client:
		if c == nil {
			return fmt.Errorf("%w: the client is nil", ErrInvalid)
		}
	case *Server:
		if c == nil {
			return fmt.Errorf("%w: the server is nil", ErrInvalid)
		}
	}
	return nil
}

// Stub returns the endpoint as a Go function.
func Stub[In, Out any](c Calls, name string) func(context.Context, In) (Out, error) {
	return func(ctx context.Context, in In) (Out, error) { return Call[Out](ctx, c, name, in) }
}

// Stream is [Calls].Stream with typed results. Leaving the loop, or the end of ctx, cancels the function at the owner.
// The caller closes the tensors of each result. An error is the last pair. In a task, the worker is released while
// Stream waits for a result.
func Stream[Out any](ctx context.Context, c Calls, name string, in any) iter.Seq2[Out, error] {
	return func(yield func(Out, error) bool) {
		if err := checkCaller(c); err != nil {
			var none Out
			yield(none, fmt.Errorf("stream %s: %w", status.Shown(name), err))
			return
		}
		for decode, err := range c.Stream(ctx, name, in) {
			var out Out
			if err == nil {
				err = decode(&out)
			}
			if err != nil {
				var none Out
				yield(none, err)
				return
			}
			if !yield(out, nil) {
				return
			}
		}
	}
}
