package endpoint_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// A client writes the next version of a model in place and passes the memory to the owner. Readers of the previous
// version do not wait for it, and acquire only layouts that they support.
func ExampleClient_NewVersion() {
	ctx := context.Background()
	dev, socket := exampleDevice()
	defer dev.Close()
	defer os.RemoveAll(filepath.Dir(socket))
	server, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	go server.Serve(context.Background())
	client, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	next, err := client.NewVersion(ctx, "llm", []module.NamedSpec{{Name: "w", DType: tensor.Float32, Shape: tensor.Shape{3}}})
	if err != nil {
		log.Fatal(err)
	}
	defer next.Abort() // no effect after Commit
	w, _ := next.StateDict().Get("w")
	elements, err := tensor.Data[float32](w) // the memory itself
	if err != nil {
		log.Fatal(err)
	}
	copy(elements, []float32{1, 2, 3})
	next.StateDict().SetCompatibility("rank 0 of 2")
	version, err := next.Commit(ctx, endpoint.PublishOptions{Source: "computed"})
	if err != nil {
		log.Fatal(err)
	}

	_, err = client.Acquire(ctx, "llm", endpoint.AcquireOptions{Compatibility: "rank 1 of 2"})
	fmt.Println(err)
	llm, err := client.Acquire(ctx, "llm", endpoint.AcquireOptions{Compatibility: "rank 0 of 2"})
	if err != nil {
		log.Fatal(err)
	}
	defer llm.Close()
	w, _ = llm.StateDict().Get("w")
	fmt.Println(version, w)
	// Output:
	// acquire "llm": version 1: the state dict is not compatible: its key is "rank 0 of 2", not "rank 1 of 2"
	// 1 tensor([1., 2., 3.])
}
