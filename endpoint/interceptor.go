package endpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/server"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Invoke makes or runs a call: the function itself, or the interceptors around it.
type Invoke func(ctx context.Context, call *Invocation) error

// Interceptor wraps calls, tasks and streams at the client ([ClientOptions].Interceptors) or at the server
// ([ServerOptions].Interceptors). It receives the next Invoke and returns a replacement. The first of several is the
// outermost. Package intercept provides some.
//
//	func timed(next endpoint.Invoke) endpoint.Invoke {
//		return func(ctx context.Context, call *endpoint.Invocation) error {
//			start := time.Now()
//			err := next(ctx, call)
//			log.Println(call.Kind, call.Endpoint, call.Peer.UID, time.Since(start), err)
//			return err
//		}
//	}
//
// An interceptor can pass on a context with more values, which reach the function at the server, or with an earlier
// deadline. The caller receives the returned error by its code: [ErrPermission] or one from [NewError] refuses the
// call. At the server, interceptors run before arguments are decoded and mapped. If an interceptor replaces success by
// an error, the function's result is released. Returning nil without a successful call of next is an error.
//
// At the client, an interceptor may call next again to repeat the call. At the server a function runs once. A panic
// becomes an error of the call at the server, and panics in the caller at the client. Interceptors must be safe for
// concurrent use.
type Interceptor func(next Invoke) Invoke

// Metadata is a set of named texts that are sent with a call. A client's interceptors set them and the server's read
// them. The limits are 32 texts of printable ASCII and 8 KiB in total. Names consist of a to z, 0 to 9, '-', '_' and
// '.'. The peer chooses them, so they prove nothing. A server without support for metadata ignores it.
type Metadata = message.Metadata

// InvocationKind is the kind of an invocation.
type InvocationKind uint8

const (
	// KindCall is a call that waits for its result, also if its endpoint runs as a task.
	KindCall InvocationKind = iota + 1
	// KindSubmit submits a task. The values of its context reach the task.
	KindSubmit
	// KindTask is the run of a submitted task, only at the server.
	KindTask
	// KindStream is a whole stream, from its start to its end.
	KindStream
)

// String returns the kind as one word.
func (k InvocationKind) String() string {
	switch k {
	case KindCall:
		return "call"
	case KindSubmit:
		return "submit"
	case KindTask:
		return "task"
	case KindStream:
		return "stream"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Peer identifies the process at the other end of a connection.
type Peer struct {
	// PID, UID and GID are the peer's credentials from the kernel, effective at the time of connection. At the client
	// they are zero while it is disconnected.
	PID      int32
	UID, GID uint32
	// Session is the client's session, as in [SessionInfo]; 0 at the client.
	Session uint64
	// Label is the client's name for people. It proves nothing.
	Label string
	// Server is the owner's id. It is empty at the server and while a client is disconnected.
	Server string
}

// Invocation is a call, task or stream as an interceptor sees it. It may be used only on the interceptor's goroutine
// until the interceptor returns.
type Invocation struct {
	// Endpoint is the name of the endpoint.
	Endpoint string
	// Kind is the kind of the invocation.
	Kind InvocationKind
	// Client reports whether this is the client's side, which makes the call, rather than the server's.
	Client bool
	// Peer is the caller at the server, and the owner at the client.
	Peer Peer
	// Metadata is sent with the call. At the client it is initially empty and interceptors fill it. At the server it is
	// the received metadata, nil if there is none.
	Metadata Metadata
	// Task is the id of the running task; empty for other kinds.
	Task string

	argument func() (any, error)
	run      func(ctx context.Context) error
}

// Argument returns the argument of the call. At the client it is the value that the caller passed. At the server it is
// a value of the function's type, decoded at the first call of Argument, and nil for the run of a task. It is borrowed;
// its tensors are valid until next has returned. An argument that cannot be decoded is an error.
func (c *Invocation) Argument() (any, error) {
	if c.argument == nil {
		return nil, nil
	}
	return c.argument()
}

var errUnanswered = errors.New("an interceptor returned nil without a successful call of next")

// chain composes the interceptors. It returns nil if there are none.
func chain(interceptors []Interceptor) (Invoke, error) {
	if len(interceptors) == 0 {
		return nil, nil
	}
	next := func(ctx context.Context, call *Invocation) error { return call.run(ctx) }
	for i := len(interceptors) - 1; i >= 0; i-- {
		if interceptors[i] == nil {
			return nil, status.Configuration(fmt.Errorf("%w: interceptor %d is nil", status.ErrInvalid, i))
		}
		if next = interceptors[i](next); next == nil {
			return nil, status.Configuration(fmt.Errorf("%w: interceptor %d returns nil", status.ErrInvalid, i))
		}
	}
	return next, nil
}

// through runs an invocation through interceptors. do may be called more than once. undo releases the result of each
// successful do that does not reach the caller.
func (c *Invocation) through(ctx context.Context, interceptors Invoke, do func(context.Context) error, undo func()) error {
	answered := false
	drop := func() {
		if answered {
			answered = false
			undo()
		}
	}
	c.run = func(ctx context.Context) error {
		drop()
		err := do(ctx)
		answered = err == nil
		return err
	}
	kept := false
	defer func() {
		if !kept { // also after a panic
			drop()
		}
	}()
	err := interceptors(ctx, c)
	if err == nil && !answered {
		return fmt.Errorf("%s %s: %w", c.Kind, status.Shown(c.Endpoint), errUnanswered)
	}
	kept = err == nil
	return err
}

// interceptServer returns the hook that runs a server's calls through interceptors, or nil if there are none.
func interceptServer(interceptors Invoke) server.Intercept {
	if interceptors == nil {
		return nil
	}
	return func(ctx context.Context, in server.Intercepted, do func(context.Context) error, undo func()) error {
		call := &Invocation{
			Endpoint: in.Endpoint, Kind: kindOf(&in), Peer: peerOf(in.Peer), Metadata: in.Metadata, Task: in.Task, argument: in.Argument,
		}
		return call.through(ctx, interceptors, do, undo)
	}
}

// kindOf returns the kind of an invocation at the server.
func kindOf(in *server.Intercepted) InvocationKind {
	switch {
	case in.Task != "":
		return KindTask
	case in.Submit:
		return KindSubmit
	case in.Stream:
		return KindStream
	}
	return KindCall
}

// peerOf returns the Peer of a server's client.
func peerOf(p server.Peer) Peer {
	return Peer{PID: p.PID, UID: p.UID, GID: p.GID, Session: p.Session, Label: p.Label}
}
