// Command server serves a small neural network to clients on other hosts, in Go and in Python: two linear layers of
// size 768 with a ReLU between them. Its weights are generated from a seed.
//
//	go run ./examples/compute/server [address]
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute"
	"github.com/sharedtensor/sharedtensor/tensor"
)

const width = 768

// network is the model. It implements compute.Function and its optional interfaces.
type network struct{ first, second []float32 }

// Setup generates the weights. A real server would load or acquire a model here.
func (n *network) Setup(context.Context) error {
	r := rand.New(rand.NewPCG(1, 2))
	weights := func() []float32 {
		w := make([]float32, width*width)
		for i := range w {
			w[i] = (r.Float32() - 0.5) / 16
		}
		return w
	}
	n.first, n.second = weights(), weights()
	return nil
}

// Info returns the description that clients see.
func (n *network) Info() map[string]string {
	return map[string]string{"name": "two-layers", "device": "cpu", "parameters": fmt.Sprint(2 * width * width)}
}

// Compute runs the forward pass on a batch. The last dimension must be 768.
func (n *network) Compute(ctx context.Context, in *tensor.Tensor) (*tensor.Tensor, error) {
	x, err := tensor.Float32s(in)
	if err != nil {
		return nil, err
	}
	shape := in.Shape()
	if len(shape) == 0 || shape[len(shape)-1] != width {
		return nil, fmt.Errorf("%w: the last dimension of %v is not %d", tensor.ErrShape, shape, width)
	}
	for row := 0; row+width <= len(x); row += width {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		hidden := linear(n.first, x[row:row+width])
		for i, h := range hidden {
			hidden[i] = max(h, 0)
		}
		copy(x[row:], linear(n.second, hidden))
	}
	return tensor.FromSlice(in.Device(), shape, x)
}

func linear(weights, x []float32) []float32 {
	y := make([]float32, width)
	for i := range y {
		for j, w := range weights[i*width : (i+1)*width] {
			y[i] += w * x[j]
		}
	}
	return y
}

func main() {
	address := "127.0.0.1:50051"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, address); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, address string) error {
	server, err := compute.NewServer(ctx, compute.ServerOptions{Function: &network{}, Name: "two-layers"})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return errors.Join(err, server.Shutdown(ctx))
	}
	log.Printf("serving %s", l.Addr())
	return server.Serve(ctx, l, 5*time.Second)
}
