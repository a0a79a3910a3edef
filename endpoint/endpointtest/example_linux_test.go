package endpointtest_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/endpointtest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// A test starts an owner and a client in a few lines. A test function calls Start, which also closes them.
func ExampleOpen() {
	ctx := context.Background()
	o, err := endpointtest.Open(endpoint.ServerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer o.Close()

	weights := module.NewStateDict()
	defer weights.Close()
	bias, err := tensor.FromSlice(o.Device, tensor.Shape{3}, []float32{1, 2, 3})
	if err != nil {
		log.Fatal(err)
	}
	if err := weights.Set("bias", bias); err != nil {
		log.Fatal(err)
	}
	if _, err := o.Server.Publish(ctx, "llm", weights, endpoint.PublishOptions{}); err != nil {
		log.Fatal(err)
	}
	model, err := o.Client.Acquire(ctx, "llm", endpoint.AcquireOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	got, _ := model.StateDict().Get("bias")
	fmt.Println(model.Version(), got)
	// Output: 1 tensor([1., 2., 3.])
}

// greet is the code under test, which calls an owner's function.
func greet(ctx context.Context, c endpoint.Calls, who string) (string, error) {
	return endpoint.Call[string](ctx, c, "greeting", who)
}

// A program that accepts endpoint.Calls is tested without an owner.
func ExampleFake() {
	fake := &endpointtest.Fake{Funcs: map[string]func(context.Context, any) (any, error){
		"greeting": func(_ context.Context, in any) (any, error) { return "hello, " + in.(string), nil },
	}}
	fmt.Println(greet(context.Background(), fake, "world"))
	fmt.Println(fake.Invocations())
	// Output:
	// hello, world <nil>
	// [{greeting world}]
}

// A client survives a crash of its owner. TestMain calls endpointtest.RunOwner with the function that serves.
func ExampleStartProcess() {
	var t *testing.T // of the test function
	endpointtest.Leaks(t)
	p := endpointtest.StartProcess(t, "7")
	c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: p.Socket, Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p.Kill()
	if _, err := c.List(t.Context()); !errors.Is(err, endpoint.ErrUnavailable) {
		t.Error("the owner is gone:", err)
	}
	p.Restart()
}
