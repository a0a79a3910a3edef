package endpoint_test

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// Commands of clients that call.

// objectCall is a call whose result is an object, which the worker then holds under a key.
type objectCall struct {
	Endpoint, Key string
	Size          int
}

// holdObjectOp calls, and holds the object. Its result is the object's id.
var holdObjectOp = op("hold", func(w *worker, ctx context.Context, in objectCall) (string, error) {
	ref, err := endpoint.CallManaged[any](ctx, w.client, in.Endpoint, modelIn{Size: in.Size})
	if err != nil {
		return "", err
	}
	w.refs[in.Key] = ref
	return ref.ID(), nil
})

// hold makes a client call an endpoint and hold the returned object, whose id it returns.
func (c *child) hold(endpoint, key string, size int) string {
	c.t.Helper()
	return holdObjectOp.Must(c.Process, objectCall{endpoint, key, size})
}

// heldOp returns the state of a reference by its key.
var heldOp = op("held", func(w *worker, _ context.Context, key string) (none, error) {
	return none{}, w.refs[key].Err()
})

// held returns nil while the client's reference is valid, otherwise the reason.
func (c *child) held(key string) error {
	c.t.Helper()
	return attempt(c, heldOp, key)
}

// takeAwayOp makes a client destroy an object by its id.
var takeAwayOp = op("take away", func(w *worker, ctx context.Context, id string) (none, error) {
	_, err := w.client.Destroy(ctx, id)
	return none{}, err
})

// joining is a number of calls at once, all with the same argument.
type joining struct {
	Endpoint, Gate string
	Calls          int
}

// joinOp calls. Its results are the errors' texts.
var joinOp = op("join", func(w *worker, ctx context.Context, in joining) ([]string, error) {
	texts := make(chan string, in.Calls)
	for range in.Calls {
		go func() { texts <- fmt.Sprint(w.client.Call(ctx, in.Endpoint, gateIn{Gate: in.Gate}, nil)) }()
	}
	all := make([]string, in.Calls)
	for i := range all {
		all[i] = <-texts
	}
	return all, nil
})

// sumTouchedOp has the owner sum a tensor of the value that the first such command had.
var sumTouchedOp = op("sum touched", func(w *worker, ctx context.Context, value float32) (float64, error) {
	if w.touched == nil {
		x, err := filled(w.dev, 4, value)
		if err != nil {
			return 0, err
		}
		w.touched = x
		x.Storage().Touch()
	}
	return endpoint.Call[float64](ctx, w.client, "sum", scaleIn{X: w.touched})
})

// sumTouched is the owner's sum of a tensor of four values, which the client makes and touches the first time.
func (c *child) sumTouched(value float32) float64 {
	c.t.Helper()
	return sumTouchedOp.Must(c.Process, value)
}

// mapOp calls with a map of a number of keys, whose order in memory is each process's own.
var mapOp = op("map", func(w *worker, ctx context.Context, keys int) (int, error) {
	in := map[string]int{}
	for n := range keys {
		in[fmt.Sprint("key ", n)] = n
	}
	return endpoint.Call[int](ctx, w.client, "map", in)
})

// callMap has a client call with a map, and returns how many keys the owner got.
func (c *child) callMap(keys int) int {
	c.t.Helper()
	return mapOp.Must(c.Process, keys)
}

// submission is a task to submit.
type submission struct {
	Endpoint string
	Size     int
}

// submitOp submits a task. Its result is the task's id.
var submitOp = op("submit", func(w *worker, ctx context.Context, in submission) (string, error) {
	info, err := w.client.Submit(ctx, in.Endpoint, modelIn{Size: in.Size})
	return info.ID, err
})

// submit has a client submit a task, and returns its id.
func (c *child) submit(endpoint string, size int) string {
	c.t.Helper()
	return submitOp.Must(c.Process, submission{endpoint, size})
}
