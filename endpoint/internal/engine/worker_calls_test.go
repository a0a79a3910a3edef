package engine_test

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// joining is a number of calls at once, all with the same argument.
type joining struct {
	Endpoint, Gate string
	Calls          int
}

// joinOp calls. Its results are the errors' texts.
var joinOp = fixture.NewOp("join", func(w *fixture.Worker, ctx context.Context, in joining) ([]string, error) {
	texts := make(chan string, in.Calls)
	for range in.Calls {
		go func() { texts <- fmt.Sprint(w.Client.Call(ctx, in.Endpoint, fixture.GateIn{Gate: in.Gate}, nil)) }()
	}
	all := make([]string, in.Calls)
	for i := range all {
		all[i] = <-texts
	}
	return all, nil
})

// touched is the tensor of the first sumTouchedOp in this process.
var touched *tensor.Tensor

// sumTouchedOp has the owner sum a tensor of the value that the first such command had.
var sumTouchedOp = fixture.NewOp("sum touched", func(w *fixture.Worker, ctx context.Context, value float32) (float64, error) {
	if touched == nil {
		x, err := fixture.Filled(w.Dev, 4, value)
		if err != nil {
			return 0, err
		}
		touched = x
		x.Storage().Touch()
	}
	return endpoint.Call[float64](ctx, w.Client, "sum", fixture.ScaleIn{X: touched})
})

// sumTouched is the owner's sum of a tensor of four values, which the client makes and touches the first time.
func sumTouched(c *fixture.Child, value float32) float64 {
	c.T.Helper()
	return sumTouchedOp.Must(c.Process, value)
}

// mapOp calls with a map of a number of keys, whose order in memory is each process's own.
var mapOp = fixture.NewOp("map", func(w *fixture.Worker, ctx context.Context, keys int) (int, error) {
	in := map[string]int{}
	for n := range keys {
		in[fmt.Sprint("key ", n)] = n
	}
	return endpoint.Call[int](ctx, w.Client, "map", in)
})

// callMap has a client call with a map, and returns how many keys the owner got.
func callMap(c *fixture.Child, keys int) int {
	c.T.Helper()
	return mapOp.Must(c.Process, keys)
}
