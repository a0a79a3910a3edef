package inproc

import "context"

// RequestKey is the context key of a request.
type RequestKey struct{}

// Reentrant is the context of a request whose function may call its own server.
type Reentrant interface {
	// CallsBack is called before such a call is sent. The goroutine that runs the function may be the reader of the
	// session, and must stop being it.
	CallsBack()
}

// CallsBack notifies the request of ctx, if there is one, that its function calls its own server.
func CallsBack(ctx context.Context) {
	if r, is := ctx.Value(RequestKey{}).(Reentrant); is {
		r.CallsBack()
	}
}
