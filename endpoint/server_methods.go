package endpoint

import (
	"context"
	"iter"
)

// Endpoints lists the endpoints of this server, sorted by name, as [Client.Endpoints] does in other processes.
func (s *Server) Endpoints(ctx context.Context) ([]EndpointInfo, error) {
	return s.caller.Endpoints(ctx)
}

// ServerInfo describes this server, as [Client.ServerInfo] does in other processes.
func (s *Server) ServerInfo(ctx context.Context) (ServerInfo, error) {
	return s.caller.ServerInfo(ctx)
}

// InvalidateCall removes the cached result of a call, as [Client.InvalidateCall] does in other processes.
func (s *Server) InvalidateCall(ctx context.Context, name string, in any) (bool, error) {
	return s.caller.InvalidateCall(ctx, name, in)
}

// InvalidateEndpoint removes all cached results of an endpoint, as [Client.InvalidateEndpoint] does in other processes.
func (s *Server) InvalidateEndpoint(ctx context.Context, name string) (int, error) {
	return s.caller.InvalidateEndpoint(ctx, name)
}

// Call calls an endpoint of this server, as [Client.Call] does in other processes.
func (s *Server) Call(ctx context.Context, name string, in, out any) error {
	return s.caller.Call(ctx, name, in, out)
}

// Stream calls an endpoint of this server that returns a stream of results, as [Client.Stream] does in other processes.
func (s *Server) Stream(ctx context.Context, name string, in any) iter.Seq2[func(out any) error, error] {
	return s.caller.Stream(ctx, name, in)
}

// ObjectInfo describes a managed object of this server, as [Client.ObjectInfo] does in other processes.
func (s *Server) ObjectInfo(ctx context.Context, objectID string) (ObjectInfo, error) {
	return s.caller.ObjectInfo(ctx, objectID)
}

// Objects lists the managed objects of this server, as [Client.Objects] does in other processes.
func (s *Server) Objects(ctx context.Context, endpoints ...string) ([]ObjectInfo, error) {
	return s.caller.Objects(ctx, endpoints...)
}

// Destroy removes a managed object of this server and all references to it, as [Client.Destroy] does in other processes.
func (s *Server) Destroy(ctx context.Context, objectID string) (ObjectInfo, error) {
	return s.caller.Destroy(ctx, objectID)
}

// EnsureLive describes a managed object of this server, or returns why it is stale, as [Client.EnsureLive] does in other processes.
func (s *Server) EnsureLive(ctx context.Context, objectID, serverID string) (ObjectInfo, error) {
	return s.caller.EnsureLive(ctx, objectID, serverID)
}

// Submit starts a call of an endpoint of this server as a task, as [Client.Submit] does in other processes.
func (s *Server) Submit(ctx context.Context, name string, in any) (*Task, error) {
	return s.caller.Submit(ctx, name, in)
}

// Task returns the task of an id, as [Client.Task] does in other processes.
func (s *Server) Task(id string) *Task {
	return s.caller.Task(id)
}

// WatchTasks follows the tasks of this server, as [Client.WatchTasks] does in other processes.
func (s *Server) WatchTasks(ctx context.Context, filter TaskFilter) iter.Seq2[TaskEvent, error] {
	return s.caller.WatchTasks(ctx, filter)
}

// Tasks lists the tasks of this server, as [Client.Tasks] does in other processes.
func (s *Server) Tasks(ctx context.Context, filter TaskFilter) ([]TaskInfo, error) {
	return s.caller.Tasks(ctx, filter)
}
