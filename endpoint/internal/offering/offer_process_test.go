package offering_test

import (
	"context"
	"iter"
	"runtime"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Processes that offer endpoints, and owners that accept the offers.

type factorIn struct {
	X      *tensor.Tensor `json:"x"`
	Factor float32        `json:"factor,omitempty"`
}

// placed is a tensor and its creator's place of the memory.
type placed struct {
	X     *tensor.Tensor `json:"x"`
	Place string         `json:"place"`
}

var errUsedUp = endpoint.NewError("quota", "the quota is used up")

// placeOf returns the place of a tensor's memory.
func placeOf(x *tensor.Tensor) (string, error) {
	d, err := x.Storage().Memory().Describe()
	return d.Place.Object, err
}

// workRegistry has the functions of test workers.
func workRegistry(dev driver.Device, counts *fixture.Counters) *endpoint.Registry {
	r := endpoint.NewRegistry()
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	scaled := func(_ context.Context, in factorIn) (*tensor.Tensor, error) {
		counts.Add("scale")
		list, err := tensor.Data[float32](in.X)
		if err != nil {
			return nil, err
		}
		out := make([]float32, len(list))
		for i, v := range list {
			out[i] = v * in.Factor
		}
		return tensor.FromSlice(dev, in.X.Shape(), out)
	}
	must(endpoint.Register(r, "scale", scaled))
	must(endpoint.Register(r, "scale once", scaled, endpoint.Cached()))
	must(endpoint.Register(r, "scale task", scaled, endpoint.AsTask()))
	must(endpoint.Register(r, "scale object", scaled, endpoint.Managed(), endpoint.NoCache()))
	must(endpoint.Register(r, "add", func(_ context.Context, in map[string]int) (int, error) {
		sum := 0
		for _, v := range in {
			sum += v
		}
		return sum, nil
	}))
	must(endpoint.Register(r, "place", func(_ context.Context, in factorIn) (string, error) { return placeOf(in.X) }))
	must(endpoint.Register(r, "make", func(_ context.Context, n int) (placed, error) {
		x, err := fixture.Filled(dev, n, 7)
		if err != nil {
			return placed{}, err
		}
		place, err := placeOf(x)
		return placed{x, place}, err
	}))
	must(endpoint.Register(r, "same", func(_ context.Context, in factorIn) (*tensor.Tensor, error) { return in.X.Alias(), nil }))
	must(endpoint.Register(r, "quota", func(context.Context, struct{}) (int, error) { return 0, errUsedUp }))
	must(endpoint.Register(r, "panic", func(context.Context, struct{}) (int, error) { panic("it hurts") }))
	must(endpoint.Register(r, "goexit", func(context.Context, struct{}) (int, error) { runtime.Goexit(); return 0, nil }))
	must(endpoint.Register(r, "wait", func(ctx context.Context, _ struct{}) (int, error) {
		counts.Add("waits")
		<-ctx.Done()
		counts.Add("cause: " + context.Cause(ctx).Error())
		return 0, context.Cause(ctx)
	}))
	must(endpoint.Register(r, "stubborn", func(context.Context, struct{}) (int, error) {
		counts.Add("stubborn")
		select {}
	}))
	must(endpoint.Register(r, "slow", func(_ context.Context, millis int) (int, error) {
		counts.Add("slow")
		defer counts.Add("slow ended")
		time.Sleep(time.Duration(millis) * time.Millisecond)
		return millis, nil
	}))
	must(endpoint.RegisterStream(r, "steps", func(ctx context.Context, n int) iter.Seq2[*tensor.Tensor, error] {
		return func(yield func(*tensor.Tensor, error) bool) {
			defer counts.Add("steps ended")
			for i := range n {
				x, err := fixture.Filled(dev, 3, float32(i))
				counts.Add("step")
				if !yield(x, err) {
					return
				}
			}
			if n == 7 {
				yield(nil, errUsedUp)
			}
		}
	}))
	return r
}

// takeOffersOp makes a worker process an owner that accepts offers on a socket.
var takeOffersOp = fixture.NewOp("take offers", func(w *fixture.Worker, _ context.Context, socket string) (fixture.None, error) {
	s, err := endpoint.NewServer(endpoint.ServerOptions{
		Socket: socket, Devices: []driver.Device{w.Dev}, Offers: endpoint.AllowOffers,
	})
	if err != nil {
		return fixture.None{}, err
	}
	w.Server = s
	go s.Serve(context.Background())
	return fixture.None{}, nil
})

// takeOffers makes a child process an owner that accepts offers.
func takeOffers(c *fixture.Child, socket string) {
	c.T.Helper()
	takeOffersOp.Must(c.Process, socket)
}

// workOp offers workRegistry to the owner of a socket.
var workOp = fixture.NewOp("work", func(w *fixture.Worker, ctx context.Context, socket string) (_ fixture.None, err error) {
	w.Client, err = endpoint.Dial(ctx, endpoint.ClientOptions{
		Socket: socket, Devices: []driver.Device{w.Dev}, Label: "the worker", Wait: true,
	})
	if err != nil {
		return fixture.None{}, err
	}
	_, err = w.Client.Offer(ctx, workRegistry(w.Dev, &w.Counts), endpoint.OfferOptions{})
	return fixture.None{}, err
})

// work makes a child process offer endpoints.
func work(c *fixture.Child, socket string) {
	c.T.Helper()
	workOp.Must(c.Process, socket)
}
