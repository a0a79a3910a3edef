package endpoint

import (
	"context"
	"iter"
	"reflect"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// RegisterStream adds a function that returns a stream of results. Items are sent as they are yielded, at the pace of
// the caller: the function waits in yield. When the caller leaves, ctx ends and yield returns false. A yielded error
// ends the stream. Ownership and errors are as for [Register].
func RegisterStream[In, Out any](r *Registry, name string, fn func(ctx context.Context, in In) iter.Seq2[Out, error], opts ...Option) error {
	d := &engine.Definition{Name: name, In: reflect.TypeFor[In](), Out: reflect.TypeFor[Out]()}
	d.Decode = func(raw message.RawMessage, storages []*tensor.Storage) (any, []interface{ Close() error }, error) {
		in := new(In)
		made, err := codec.DecodePayload(raw, storages, in, true)
		return in, made, err
	}
	d.Stream = func(ctx context.Context, in any, send func(any) error) error {
		for out, err := range fn(ctx, *in.(*In)) {
			if err != nil {
				codec.CloseValue(out)
				return err
			}
			if err := send(out); err != nil {
				return err
			}
		}
		return nil
	}
	if fn != nil {
		d.Invoke = engine.InvokeStream(d)
	}
	return r.add(d, opts)
}
