package endpoint

import (
	"context"
	"iter"
)

// Endpoints lists the endpoints, sorted by name.
func (c *Client) Endpoints(ctx context.Context) ([]EndpointInfo, error) {
	return c.caller.Endpoints(ctx)
}

// ServerInfo describes the server: its identity, counters, endpoints and clients. It returns [ErrUnavailable] if no
// owner serves, or if the owner does not answer within five seconds.
func (c *Client) ServerInfo(ctx context.Context) (ServerInfo, error) {
	return c.caller.ServerInfo(ctx)
}

// InvalidateCall removes the cached result of a call with that argument, and cancels caching of one that is being
// computed: later callers get a new run. It reports whether there was one. Callers that have the result keep it.
func (c *Client) InvalidateCall(ctx context.Context, name string, in any) (bool, error) {
	return c.caller.InvalidateCall(ctx, name, in)
}

// InvalidateEndpoint removes all cached results of an endpoint, including those being computed, and returns their
// number.
func (c *Client) InvalidateEndpoint(ctx context.Context, name string) (int, error) {
	return c.caller.InvalidateEndpoint(ctx, name)
}

// Call calls an endpoint and decodes its result into out, a pointer, or drops the result if out is nil. It borrows in,
// which is encoded by the rules of [Register]. Tensors are shared in place, not copied: the function sees the same
// memory while it runs. The caller closes the tensors of the result. They stay valid after the owner exits. Other
// callers may share them, so they must not be written.
//
// The reference to a managed result is released at once; use [CallManaged] to keep it.
//
// When ctx ends, the function is cancelled and Call returns, even if the owner does not read its socket. Errors: those
// of the function, with their codes; [ErrNoEndpoint]; those of Dial if the connection is lost. A call that was sent is
// not repeated after its connection is lost, because the function may have run.
func (c *Client) Call(ctx context.Context, name string, in, out any) error {
	return c.caller.Call(ctx, name, in, out)
}

// Stream calls an endpoint that returns a stream of results. Each pair is either a function that decodes the result
// into a pointer, once and before the next pair, or an error, which is the last. A result that is not decoded is
// dropped. Leaving the loop, or the end of ctx, cancels the function at the owner. The function [Stream] has typed
// results.
func (c *Client) Stream(ctx context.Context, name string, in any) iter.Seq2[func(out any) error, error] {
	return c.caller.Stream(ctx, name, in)
}

// ObjectInfo describes a managed object. It returns a [*StaleError] if the server does not have it.
func (c *Client) ObjectInfo(ctx context.Context, objectID string) (ObjectInfo, error) {
	return c.caller.ObjectInfo(ctx, objectID)
}

// Objects lists the managed objects of the endpoints, or all if none is given, with the sessions that hold them, oldest
// first. A long list takes several requests; an object that is created or destroyed meanwhile may be missing.
func (c *Client) Objects(ctx context.Context, endpoints ...string) ([]ObjectInfo, error) {
	return c.caller.Objects(ctx, endpoints...)
}

// Destroy removes a managed object and all references to it. It returns the object's last description, including its
// holders. Their references become stale, with a detail that names the destroying process. Memory that they have mapped
// stays valid. Errors: [ErrPermission] if this process runs neither as the owner's user nor as root, [ErrStale] if the
// server does not have the object.
func (c *Client) Destroy(ctx context.Context, objectID string) (ObjectInfo, error) {
	return c.caller.Destroy(ctx, objectID)
}

// EnsureLive describes a managed object of the server with that id; an empty id accepts any server. It returns a
// [*StaleError] with the reason if the object is gone.
func (c *Client) EnsureLive(ctx context.Context, objectID, serverID string) (ObjectInfo, error) {
	return c.caller.EnsureLive(ctx, objectID, serverID)
}

// Submit starts a call as a task and returns at once. Any endpoint except a stream can run as a task. After Submit has
// returned, the task outlives ctx and the connection. Its label is that of [WithTaskLabel]. If ctx ends before the caller
// has the task's id, the task is cancelled. Its arguments are shared as in Call. Errors: [ErrNoEndpoint], task.ErrCapacity, task.ErrShutdown.
func (c *Client) Submit(ctx context.Context, name string, in any) (*Task, error) {
	return c.caller.Submit(ctx, name, in)
}

// Task returns the task of an id, such as [Task].ID of another process. It sends no request: the methods of an unknown
// task return task.ErrNotFound.
func (c *Client) Task(id string) *Task {
	return c.caller.Task(id)
}

// WatchTasks follows tasks. It first lists existing tasks in order of submission, then reports every change of state in
// order, including those of short-lived tasks, with the latest progress. A slow loop skips progress but no states; if
// too many changes are queued, it receives [TasksMissed]. If the filter has states, a task is reported from the first
// time it is in one of them. The iteration ends when the loop is left or after an error, the last pair:
// [ErrUnavailable] if the server is gone, or the cause of ctx. Tasks end with their server: before that error, each task
// that had not ended is reported as [TaskLost].
func (c *Client) WatchTasks(ctx context.Context, filter TaskFilter) iter.Seq2[TaskEvent, error] {
	return c.caller.WatchTasks(ctx, filter)
}

// Tasks lists the tasks that the filter selects, in order of submission. Their errors are those of Task, truncated if
// they are long.
func (c *Client) Tasks(ctx context.Context, filter TaskFilter) ([]TaskInfo, error) {
	return c.caller.Tasks(ctx, filter)
}
