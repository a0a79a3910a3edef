package endpoint_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// call are the commands of a client that calls.
func (w *worker) call(ctx context.Context, do command) (a answer, err error) {
	in := modelIn{Size: int(do.Bytes)}
	switch do.Do {
	case "hold":
		ref, err := endpoint.CallManaged[any](ctx, w.client, do.Name, in)
		if err != nil {
			return a, err
		}
		if w.refs == nil {
			w.refs = map[string]*endpoint.Ref[any]{}
		}
		w.refs[do.Key] = ref
		a.ID = ref.ID()
	case "held":
		if err := w.refs[do.Key].Err(); err != nil {
			a.State = err.Error()
		}
	case "take away":
		_, err := w.client.Destroy(ctx, do.Name)
		return a, err
	case "join": // calls at once, all with the same argument
		texts := make(chan string, do.Tensors)
		for range do.Tensors {
			go func() { texts <- fmt.Sprint(w.client.Call(ctx, do.Name, gateIn{Gate: do.Key}, nil)) }()
		}
		all := make([]string, do.Tensors)
		for i := range all {
			all[i] = <-texts
		}
		a.State = strings.Join(all, "\n")
		return a, nil
	case "sum of touched":
		if w.touched == nil {
			if w.touched, err = filled(w.dev, 4, float32(do.Seed)); err != nil {
				return a, err
			}
			w.touched.Storage().Touch()
		}
		a.Value, err = endpoint.Call[float64](ctx, w.client, "sum", scaleIn{X: w.touched})
		return a, err
	case "map": // an argument whose order in memory is each process's own
		in := map[string]int{}
		for n := range do.Tensors {
			in[fmt.Sprint("key ", n)] = n
		}
		n, err := endpoint.Call[int](ctx, w.client, "map", in)
		a.Value = float64(n)
		return a, err
	case "submit":
		info, err := w.client.Submit(ctx, do.Name, in)
		a.ID = info.ID
		return a, err
	}
	return a, nil
}
