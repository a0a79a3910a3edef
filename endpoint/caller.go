package endpoint

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/calls"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/reference"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Calls makes calls: what a program that only calls takes, and a test of it stands in for with two methods or with
// endpointtest.Fake. [Call], [Stub], [Stream] and [CallManaged] do with it.
type Calls interface {
	// Call calls an endpoint and decodes its result into out. See [Client.Call].
	Call(ctx context.Context, name string, in, out any) error
	// Stream calls an endpoint whose results come one by one. See [Client.Stream].
	Stream(ctx context.Context, name string, in any) iter.Seq2[func(out any) error, error]
}

// Tasks submits calls as tasks and sees to them.
type Tasks interface {
	// Submit starts a call as a task and returns at once.
	Submit(ctx context.Context, name string, in any) (TaskInfo, error)
	// Task describes a task.
	Task(ctx context.Context, id string) (TaskInfo, error)
	// Wait waits for the end of a task.
	Wait(ctx context.Context, id string) (TaskInfo, error)
	// WatchTasks follows the changes of tasks.
	WatchTasks(ctx context.Context, filter TaskFilter) iter.Seq2[TaskEvent, error]
	// WatchTask follows the changes of a task to its end.
	WatchTask(ctx context.Context, id string) iter.Seq2[TaskInfo, error]
	// Result decodes the result of a task that has completed into out.
	Result(ctx context.Context, id string, out any) error
	// Cancel cancels a task and reports whether it could.
	Cancel(ctx context.Context, id string) (bool, error)
	// Tasks lists tasks.
	Tasks(ctx context.Context, filter TaskFilter) ([]TaskInfo, error)
}

// Objects sees to managed objects and the references to them.
type Objects interface {
	// Release gives references to managed objects back by the ids of the objects, and reports what became of each.
	Release(ctx context.Context, objectIDs ...string) ([]Released, error)
	// ObjectInfo describes a managed object.
	ObjectInfo(ctx context.Context, objectID string) (ObjectInfo, error)
	// Objects lists the managed objects and who holds them.
	Objects(ctx context.Context, endpoints ...string) ([]ObjectInfo, error)
	// Destroy takes all references to a managed object away.
	Destroy(ctx context.Context, objectID string) (ObjectInfo, error)
	// EnsureLive describes a managed object of a certain server, or says why it is stale.
	EnsureLive(ctx context.Context, objectID, serverID string) (ObjectInfo, error)
}

// Caller is all that can be done with endpoints through a [Client], whose owner is another process, a [Server], which
// calls its own endpoints over a connection within the process, or a [Node], which is one of the two. All three check,
// cache, share and fail alike. Functions take the part of it that they use: [Calls], [Tasks], [Objects].
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
}

// holder is what has references to managed objects: all of this package. A stand-in of a test has none.
type holder interface {
	Objects
	keep(ctx context.Context, f calls.Call, out any) (*reference.Reference, error)
}

// caller is what a [Caller] does through a client: of another process, or of the server's own process.
type caller struct{ to *target }

// keep implements holder.
func (c *caller) keep(ctx context.Context, f calls.Call, out any) (*reference.Reference, error) {
	return c.to.keep(ctx, f, out)
}

// Call calls an endpoint and decodes its result into out, a pointer, or drops it where out is nil. in is encoded by the
// rules of [Register], and borrowed; its tensors are shared in place, not copied: whoever runs the function sees the
// same memory for as long as it runs. Tensors of the result are the caller's, who closes them; they stay valid whatever
// becomes of the owner. They may be of a result that others got too, so nobody writes to them.
//
// The reference that comes with a managed result goes back at once; see [CallManaged] to keep it.
//
// When ctx ends the function is told to stop, and Call returns, also where the owner does not read what it is sent.
// Errors: what the function returned, with its code; [ErrNoEndpoint]; those of Dial where the connection is gone. A
// call whose connection breaks is not repeated once it was sent: the function may have run.
func (c *caller) Call(ctx context.Context, name string, in, out any) error {
	return c.to.get(ctx, calls.Call{Name: name, In: in}, out)
}

// Endpoints lists the endpoints in the order of their names.
func (c *caller) Endpoints(ctx context.Context) ([]EndpointInfo, error) {
	var got message.EndpointsListed
	if err := c.to.conn.Request(ctx, link.Request{Op: message.OpEndpoints}, &got); err != nil {
		return nil, fmt.Errorf("endpoints: %w", err)
	}
	list := make([]EndpointInfo, 0, len(got.Endpoints))
	for _, e := range got.Endpoints {
		list = append(list, decodeEndpoint(e))
	}
	return list, nil
}

// ServerInfo describes the server: what it is, what it has counted, what its endpoints took, and who its clients are.
// It does not wait for an owner that is not there, nor longer than five seconds for one that does not answer: both are
// [ErrUnavailable].
func (c *caller) ServerInfo(ctx context.Context) (ServerInfo, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.to.infoTimeout, errInfoTimeout)
	defer cancel()
	var got message.ServerInfo
	if err := c.to.conn.RequestNow(ctx, link.Request{Op: message.OpServerInfo}, &got); err != nil {
		return ServerInfo{}, fmt.Errorf("server info: %w", err)
	}
	return decodeServerInfo(got), nil
}

// defaultInfoTimeout is how long a server may take to describe itself. Programs ask for it where they must not be held
// up: to be scraped, or to show how they are.
const defaultInfoTimeout = 5 * time.Second

var errInfoTimeout = fmt.Errorf("%w: the owner did not answer within %v: %w", status.ErrUnavailable, defaultInfoTimeout, context.DeadlineExceeded)

// InvalidateCall drops the cached result of a call with that argument, and one that is being made: who asks after it
// gets what was begun after it. It reports whether there was one. Who has the result keeps it.
func (c *caller) InvalidateCall(ctx context.Context, name string, in any) (bool, error) {
	var got message.Invalidated
	if err := c.to.invoker.Ask(ctx, message.OpInvalidateCall, calls.Call{Name: name, In: in}, &got); err != nil {
		return false, fmt.Errorf("invalidate call %s: %w", status.Shown(name), err)
	}
	return got.Count > 0, nil
}

// InvalidateEndpoint drops all cached results of an endpoint, and those that are being made, and returns how many there
// were.
func (c *caller) InvalidateEndpoint(ctx context.Context, name string) (int, error) {
	var got message.Invalidated
	ask := link.Request{Op: message.OpInvalidateEndpoint, Body: message.InvalidateEndpoint{Endpoint: name}}
	if err := c.to.conn.Request(ctx, ask, &got); err != nil {
		return 0, fmt.Errorf("invalidate endpoint %s: %w", status.Shown(name), err)
	}
	return int(got.Count), nil
}
