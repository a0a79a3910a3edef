package endpoint_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// A worker runs a function for the clients of an owner. The owner has the memory of results and survives crashes of
// workers, so the code that may crash is in workers. Owner, worker and caller are usually three processes.
func ExampleClient_Offer() {
	ctx := context.Background()
	dev, socket := exampleDevice()
	defer dev.Close()
	defer os.RemoveAll(filepath.Dir(socket))
	devices := []driver.Device{dev}

	owner, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: devices, Offers: endpoint.AllowOffers})
	if err != nil {
		log.Fatal(err)
	}
	defer owner.Close()
	go owner.Serve(ctx)

	functions := endpoint.NewRegistry()
	err = endpoint.Register(functions, "ones", func(_ context.Context, n int64) (*tensor.Tensor, error) {
		values := make([]float32, n)
		for i := range values {
			values[i] = 1
		}
		return tensor.FromSlice(dev, tensor.Shape{n}, values) // the endpoint closes it
	})
	if err != nil {
		log.Fatal(err)
	}
	// Only a client over the socket can offer, and a client in the owner's process does not use it by default.
	worker, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: devices, OverSocket: true})
	if err != nil {
		log.Fatal(err)
	}
	defer worker.Close()
	offer, err := worker.Offer(ctx, functions, endpoint.OfferOptions{Calls: 4})
	if err != nil {
		log.Fatal(err)
	}

	caller, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: devices})
	if err != nil {
		log.Fatal(err)
	}
	defer caller.Close()
	ones, err := endpoint.Call[*tensor.Tensor](ctx, caller, "ones", 3)
	if err != nil {
		log.Fatal(err)
	}
	if err := offer.Close(); err != nil { // the function is withdrawn
		log.Fatal(err)
	}
	values, err := tensor.Float32s(ones) // the result outlives the offer
	fmt.Println(values, err)
	if err := ones.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: [1 1 1] <nil>
}
