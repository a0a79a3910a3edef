// Command client sends a set of tensors to the example server, fetches it back, and has the server process tensors.
//
//	go run ./examples/stream/client [address [megabytes]]
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func main() {
	address, megabytes := "127.0.0.1:50051", int64(64)
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	if len(os.Args) > 2 {
		var err error
		if megabytes, err = strconv.ParseInt(os.Args[2], 10, 32); err != nil {
			log.Fatal(err)
		}
	}
	if err := run(context.Background(), address, megabytes); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, address string, megabytes int64) error {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer dev.Close()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := stream.NewClient(conn, stream.ClientOptions{Device: dev, Attempts: 50, Progress: tenths()})
	model, err := module.Synthesize(dev, module.Synthetic{Tensors: 4, Bytes: megabytes << 20, Seed: 7})
	if err != nil {
		return err
	}
	defer model.Close()
	if err := putAndGet(ctx, client, model); err != nil {
		return err
	}
	return exchange(ctx, client, dev)
}

// tenths returns a progress function that prints each tenth of a transfer.
func tenths() func(done, total int64) {
	last := int64(-1)
	return func(done, total int64) {
		if tenth := 10 * done / max(total, 1); tenth != last {
			last = tenth
			fmt.Printf("%d of %d bytes\n", done, total)
		}
	}
}

// putAndGet sends the model and fetches it back.
func putAndGet(ctx context.Context, client *stream.Client, model *module.StateDict) error {
	begin := time.Now()
	receipt, err := client.Put(ctx, &stream.Set{Name: "model", Tensors: model})
	if err != nil {
		return err
	}
	fmt.Printf("sent version %d in %v, %d calls, %d bytes\n", receipt.Version, time.Since(begin), receipt.Calls, receipt.Sent)
	begin = time.Now()
	set, err := client.Get(ctx, stream.Request{Name: "model"})
	if err != nil {
		return err
	}
	defer set.Close()
	for name, want := range model.All() {
		got, ok := set.Tensors.Get(name)
		if !ok {
			return fmt.Errorf("tensor %s was not returned", name)
		}
		if equal, err := want.Equal(got); err != nil || !equal {
			return fmt.Errorf("tensor %s was returned with changes: %w", name, err)
		}
	}
	fmt.Printf("received version %d in %v, equal\n", set.Version, time.Since(begin))
	return nil
}

// exchange has the server double three tensors.
func exchange(ctx context.Context, client *stream.Client, dev *host.Device) error {
	x, err := client.Exchange(ctx)
	if err != nil {
		return err
	}
	defer x.Close()
	for i := range 3 {
		t, err := tensor.FromSlice(dev, tensor.Shape{2}, []float32{float32(i), 0.5})
		if err != nil {
			return err
		}
		err = x.Send(&stream.Item{ID: fmt.Sprint(i), Tensor: t})
		t.Close()
		if err != nil {
			return err
		}
	}
	if err := x.CloseSend(); err != nil {
		return err
	}
	for {
		item, err := x.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Printf("tensor %s doubled: %v\n", item.ID, item.Tensor)
		item.Tensor.Close()
	}
}
