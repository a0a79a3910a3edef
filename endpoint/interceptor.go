package endpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Invoke makes a call or runs one: the function itself, or the interceptors that stand in front of it.
type Invoke func(ctx context.Context, call *Invocation) error

// Interceptor puts something in front of calls, tasks and streams, at the side that makes them
// ([ClientOptions].Interceptors) or at the side that runs them ([ServerOptions].Interceptors): it is given what comes
// next, and returns what is to be done instead. Of several the first is the outermost. Package intercept has some that
// are ready to use.
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
// The context that is passed on may have more values, which reach the function at the server's side, and an earlier
// end. An error that is returned is what the caller gets, by its code: [ErrPermission] or one of [NewError] refuses the
// call without running anything, for at the server's side an interceptor runs before the arguments are decoded and
// their memory is mapped. What the function has returned when an interceptor makes an error of it is given back. nil
// without a next that has returned nil is an error.
//
// An interceptor of a client may call next again: the call is made once more. At the server's side a function runs
// once. A panic is an error of the call at the server's side, and the caller's own at the client's. Interceptors are
// called by many goroutines at once.
type Interceptor func(next Invoke) Invoke

// Metadata are texts that go with a call, by name. A client's interceptors set them, the server's read them: at most 32
// texts of printable ASCII, with names of a to z, 0 to 9, '-', '_' and '.', of 8 KiB together. A peer chose them: they
// prove nothing. A server that does not know of metadata ignores it.
type Metadata = message.Metadata

// InvocationKind is what is invoked.
type InvocationKind uint8

const (
	// KindCall is a call that waits for the result. That of an endpoint that runs as a task is one too.
	KindCall InvocationKind = iota + 1
	// KindSubmit starts a task and returns. Its context's values reach the task.
	KindSubmit
	// KindTask is the run of a submitted task, at the server's side only.
	KindTask
	// KindStream is a stream, from its beginning to its end.
	KindStream
)

// String is the kind as a word.
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

// Peer is the process on the other side of a connection.
type Peer struct {
	// PID, UID and GID are what the kernel says of the process: the effective ones at the time when it connected. At
	// the client's side they are zero while no owner is connected.
	PID      int32
	UID, GID uint32
	// Session is the client's session, as in [SessionInfo]; 0 at the client's side.
	Session uint64
	// Label is what a client calls itself, for people; it proves nothing.
	Label string
	// Server names the owner's life; empty at the server's side, and while none is connected.
	Server string
}

// Invocation is one call, task or stream, as an interceptor sees it. It belongs to the goroutine that runs the
// interceptor, until that returns.
type Invocation struct {
	// Endpoint is the name of the function.
	Endpoint string
	// Kind says what is invoked.
	Kind InvocationKind
	// Client tells that this is the side that makes the call; else it runs the function.
	Client bool
	// Peer is who called at the server's side, and the owner at the client's.
	Peer Peer
	// Metadata goes with the call. At the client's side it is empty at first, and what interceptors have set is sent;
	// at the server's it is what came, nil for none.
	Metadata Metadata
	// Task is the id of the task that runs; empty for other kinds.
	Task string

	argument func() (any, error)
	run      func(ctx context.Context) error
}

// Argument is the argument of the call: what the caller passed at the client's side, a value of the function's own type
// at the server's, which is decoded when it is first asked for; nil for a task that runs. It is borrowed, and its
// tensors are valid until next has returned. Errors are those of an argument that cannot be decoded.
func (c *Invocation) Argument() (any, error) {
	if c.argument == nil {
		return nil, nil
	}
	return c.argument()
}

var errUnanswered = errors.New("an interceptor returned nil, though nothing had answered the call")

// chain puts the interceptors in front of each other; nil for none.
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

// through has an invocation go through interceptors. do may be called more than once; undo gives back what it has
// returned with success, where that reaches nobody.
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
		if !kept { // a panic, too
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
