package endpoint

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task"
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
	// Release gives one reference to a managed object back.
	Release(ctx context.Context, objectID string) (bool, error)
	// ReleaseEach gives one reference to each of some managed objects back, and reports what became of each.
	ReleaseEach(ctx context.Context, objectIDs ...string) ([]Released, error)
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
	keep(ctx context.Context, f fetch, out any) (*reference, error)
}

// fetch says which value is wanted: that of a call, or the result of a task.
type fetch struct {
	name string // of the endpoint
	in   any
	with Metadata // goes with the call
	task string   // the task, instead of the two above
}

// String says it for errors.
func (f fetch) String() string {
	if f.task != "" {
		return "result of task " + message.CutText(f.task, status.MaxShown)
	}
	return fmt.Sprintf("call %s", status.Shown(f.name))
}

// caller is what a [Caller] does through a client: of another process, or of the server's own process.
type caller struct{ to *Client }

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
	return c.get(ctx, fetch{name: name, in: in}, out)
}

// get fetches a value, a call's through the client's interceptors.
func (c *caller) get(ctx context.Context, f fetch, out any) error {
	if c.to.intercept == nil || f.task != "" {
		return c.getNow(ctx, f, out)
	}
	return c.to.intercepted(ctx, KindCall, f.name, f.in, func(ctx context.Context, with Metadata) error {
		return c.getNow(ctx, fetch{name: f.name, in: f.in, with: with}, out)
	}, func() { dropValue(out) })
}

// getNow is fetch that names what it fetches in errors.
func (c *caller) getNow(ctx context.Context, f fetch, out any) error {
	if err := waiting(ctx, func() error { return c.to.fetch(ctx, f, out) }); err != nil {
		return fmt.Errorf("%s: %w", f, err)
	}
	return nil
}

// keep is get that keeps the reference.
func (c *caller) keep(ctx context.Context, f fetch, out any) (*reference, error) {
	if c.to.intercept == nil || f.task != "" {
		return c.keepNow(ctx, f, out)
	}
	var ref *reference
	err := c.to.intercepted(ctx, KindCall, f.name, f.in, func(ctx context.Context, with Metadata) (err error) {
		ref, err = c.keepNow(ctx, fetch{name: f.name, in: f.in, with: with}, out)
		return err
	}, func() {
		dropValue(out)
		if ref != nil && ref.end(errReleased) {
			_, _ = c.to.returnReference(context.WithoutCancel(ctx), ref, false)
		}
	})
	if err != nil {
		return nil, err
	}
	return ref, nil
}

// keepNow is getNow that keeps the reference.
func (c *caller) keepNow(ctx context.Context, f fetch, out any) (*reference, error) {
	var ref *reference
	err := waiting(ctx, func() (err error) {
		ref, err = c.to.hold(ctx, f, out)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f, err)
	}
	return ref, nil
}

// waiting calls wait. In a task it gives the task's worker to others meanwhile: what is waited for may be another task.
func waiting(ctx context.Context, wait func() error) error {
	if _, ok := task.ID(ctx); ok {
		return task.Blocking(ctx, wait)
	}
	return wait()
}

// Endpoints lists the endpoints in the order of their names.
func (c *caller) Endpoints(ctx context.Context) ([]EndpointInfo, error) {
	var got message.EndpointsListed
	if err := c.to.request(ctx, link.Request{Op: message.OpEndpoints}, &got); err != nil {
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
	if err := c.to.requestNow(ctx, link.Request{Op: message.OpServerInfo}, &got); err != nil {
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
	if err := c.to.ask(ctx, message.OpInvalidateCall, fetch{name: name, in: in}, &got); err != nil {
		return false, fmt.Errorf("invalidate call %s: %w", status.Shown(name), err)
	}
	return got.Count > 0, nil
}

// InvalidateEndpoint drops all cached results of an endpoint, and those that are being made, and returns how many there
// were.
func (c *caller) InvalidateEndpoint(ctx context.Context, name string) (int, error) {
	var got message.Invalidated
	ask := link.Request{Op: message.OpInvalidateEndpoint, Body: message.InvalidateEndpoint{Endpoint: name}}
	if err := c.to.request(ctx, ask, &got); err != nil {
		return 0, fmt.Errorf("invalidate endpoint %s: %w", status.Shown(name), err)
	}
	return int(got.Count), nil
}
