package intercept_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
)

// A server lets all permitted users call "ask" but only the trainer's user call "train". Its functions can read their
// caller's trace.
func Example() {
	functions := endpoint.NewRegistry()
	ask := func(ctx context.Context, question string) (string, error) {
		trace, _ := intercept.TraceFrom(ctx)
		return question + "? in trace " + trace.TraceID, nil
	}
	if err := endpoint.Register(functions, "ask", ask); err != nil {
		log.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "st")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	quota := 1
	limited := func(next endpoint.Invoke) endpoint.Invoke { // an interceptor of the program
		return func(ctx context.Context, call *endpoint.Invocation) error {
			if quota--; quota < 0 {
				return endpoint.NewError("quota", fmt.Sprintf("%s is called too often", call.Endpoint))
			}
			return next(ctx, call)
		}
	}
	server, err := endpoint.NewServer(endpoint.ServerOptions{
		Socket: filepath.Join(dir, "example.sock"), Registry: functions,
		Interceptors: []endpoint.Interceptor{
			intercept.Tracing(nil), limited, intercept.Only(intercept.Callers{UIDs: []uint32{1000}}, "train"),
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	go server.Serve(context.Background())

	client, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{
		Socket: server.Socket(), Interceptors: []endpoint.Interceptor{intercept.Tracing(nil)},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	// The trace of an HTTP request, from its header.
	trace, _ := intercept.ParseTrace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "")
	ctx := intercept.WithTrace(context.Background(), trace)
	answer, err := endpoint.Call[string](ctx, client, "ask", "why")
	fmt.Println(answer, err)
	_, err = endpoint.Call[string](ctx, client, "ask", "why")
	var refused *endpoint.Error
	fmt.Println(errors.As(err, &refused), err)
	// Output:
	// why? in trace 4bf92f3577b34da6a3ce929d0e0e4736 <nil>
	// true call "ask": owner: ask is called too often
}
