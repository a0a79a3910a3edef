package inproc

import "context"

// RequestKey is what the context of a request is found by.
type RequestKey struct{}

// Reentrant is the context of a request whose function may call its own server.
type Reentrant interface {
	// CallsBack is called before such a call is sent: whoever runs the function may be the one who reads.
	CallsBack()
}

// CallsBack tells the request that ctx belongs to, if there is one, that its function calls its own server.
func CallsBack(ctx context.Context) {
	if r, is := ctx.Value(RequestKey{}).(Reentrant); is {
		r.CallsBack()
	}
}
