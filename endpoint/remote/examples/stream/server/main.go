// Command server stores sets of tensors for clients on other hosts, returns them, and scales tensors. Clients are Go
// programs, or Python programs with kpu.torch.Service.
//
//	go run ./examples/stream/server [address]
package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// store keeps the last set of each name. It implements stream.Sink and stream.Source.
type store struct {
	dev *host.Device

	mu   sync.Mutex
	sets map[string]*stream.Set
}

// Receive stores a set and replaces the previous one.
func (s *store) Receive(_ context.Context, set *stream.Set) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	version := uint64(1)
	if old := s.sets[set.Name]; old != nil {
		version = old.Version + 1
		old.Close()
	}
	set.Version = version
	s.sets[set.Name] = set
	log.Printf("received %s, version %d: %d tensors, %d bytes", set.Name, version, set.Tensors.Len(), set.Tensors.Bytes())
	return version, nil
}

// Set returns a stored set.
func (s *store) Set(_ context.Context, request stream.Request) (*stream.Set, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set := s.sets[request.Name]
	if set == nil {
		return nil, fmt.Errorf("%w: %q", stream.ErrNotFound, request.Name)
	}
	id := fmt.Sprintf("%s@%d", set.Name, set.Version)
	return &stream.Set{ID: id, Name: set.Name, Version: set.Version, Tensors: set.Tensors.Alias()}, nil
}

// Tensor returns a tensor of random numbers with the shape in the parameters.
func (s *store) Tensor(_ context.Context, index int, parameters map[string]string) (*stream.Item, error) {
	shape := tensor.Shape{10, 10}
	if text := parameters["shape"]; text != "" {
		shape = nil
		for _, word := range strings.Split(text, ",") {
			n, err := strconv.ParseInt(strings.TrimSpace(word), 10, 32)
			if err != nil || n < 0 {
				return nil, fmt.Errorf("%w: shape %q", stream.ErrInvalid, text)
			}
			shape = append(shape, n)
		}
	}
	if n, err := shape.NumElements(); err != nil || n > 1<<24 {
		return nil, fmt.Errorf("%w: shape %v", stream.ErrLimit, shape)
	}
	t, err := tensor.Zeros(s.dev, tensor.Float32, shape)
	if err != nil {
		return nil, err
	}
	values, err := tensor.Data[float32](t)
	if err != nil {
		return nil, err
	}
	for i := range values {
		values[i] = float32(rand.NormFloat64())
	}
	return &stream.Item{ID: fmt.Sprintf("random_%d", index), Tensor: t}, nil
}

// Process doubles a tensor.
func (s *store) Process(_ context.Context, item *stream.Item) (*tensor.Tensor, error) {
	values, err := tensor.Float32s(item.Tensor)
	if err != nil {
		return nil, err
	}
	for i := range values {
		values[i] *= 2
	}
	return tensor.FromSlice(s.dev, item.Tensor.Shape(), values)
}

var _ interface {
	stream.Source
	stream.Sink
	stream.Processor
} = (*store)(nil)

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
	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer dev.Close()
	s := &store{dev: dev, sets: map[string]*stream.Set{"empty": {Name: "empty", Tensors: module.NewStateDict()}}}
	server, err := stream.NewServer(stream.ServerOptions{Device: dev, Source: s, Sink: s, Processor: s})
	if err != nil {
		return err
	}
	defer server.Close()
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	g := grpc.NewServer(server.GRPCOptions()...)
	server.Register(g)
	context.AfterFunc(ctx, g.GracefulStop)
	log.Printf("serving %s", l.Addr())
	return g.Serve(l)
}
