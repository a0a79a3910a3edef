package inference

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// runBatch calls the function of a batch once, and gives each request its part of the result. Requests whose context has
// ended are not part of the call.
func runBatch(group []*batched) {
	start := time.Now()
	live := group[:0:0]
	for _, one := range group {
		if one.ctx.Err() != nil {
			one.finish(nil, context.Cause(one.ctx))
			continue
		}
		one.spent.queue = start.Sub(one.queued)
		live = append(live, one)
	}
	if len(live) == 0 {
		return
	}
	var result any
	var joined *batchArgument
	defer func() { // nothing is left to do unless the function or a copy panicked
		for i, one := range live {
			if one.finished {
				continue
			}
			if i == 0 {
				_ = contain.Call(func() error { closeTensors(result); return joined.close() })
			}
			one.finish(nil, contain.ErrPanic)
		}
	}()
	ctx, end := whileWanted(live)
	defer end()
	model := live[0].model
	var err error
	joined, err = joinArguments(live)
	called := time.Now()
	if err == nil {
		result, err = model.call(ctx, joined.value)
	}
	answered := time.Now()
	var parts []any
	if err == nil {
		parts, err = splitResult(result, rowsOf(live))
		if err != nil {
			err = fmt.Errorf("a batch of model '%s': %w", model.name, err)
		}
		closeTensors(result)
	}
	if err != nil {
		err = cause(ctx, err)
	}
	err = errors.Join(err, joined.close())
	rows := int64(0)
	for i, one := range live {
		rows += one.rows
		one.spent.input, one.spent.infer = called.Sub(start), answered.Sub(called)
		var part any
		if err == nil {
			part = parts[i]
		}
		one.finish(part, err)
	}
	if err == nil {
		model.stats.batch(rows, called.Sub(start), answered.Sub(called), time.Since(answered))
	} else {
		for _, part := range parts {
			closeTensors(part)
		}
	}
}

// finish gives the request its result and closes its argument.
func (one *batched) finish(result any, err error) {
	one.finished = true
	one.result, one.err = result, errors.Join(err, contain.Call(one.argument.close))
	close(one.done)
}

// whileWanted returns a context that ends when the contexts of all requests have ended. The caller calls end.
func whileWanted(group []*batched) (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(group[0].ctx))
	var left atomic.Int64
	left.Store(int64(len(group)))
	stops := make([]func() bool, len(group))
	for i, one := range group {
		stops[i] = contain.OnDone(one.ctx, func() {
			if left.Add(-1) == 0 {
				cancel(context.Cause(one.ctx))
			}
		}, cancel)
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}
}

func rowsOf(group []*batched) []int64 {
	rows := make([]int64, len(group))
	for i, one := range group {
		rows[i] = one.rows
	}
	return rows
}

// batchArgument is the argument of a batch. Its slab is nil if it is the argument of one request, which owns it.
type batchArgument struct {
	value   any
	slab    *tensor.Storage
	tensors []*tensor.Tensor
}

func (a *batchArgument) close() (err error) {
	if a == nil || a.slab == nil {
		return nil
	}
	for _, t := range a.tensors {
		err = errors.Join(err, t.Close())
	}
	return errors.Join(err, a.slab.Close())
}

// joinArguments concatenates the tensors of all requests along their first dimension, in one slab. A batch of one request
// uses the request's argument.
func joinArguments(group []*batched) (*batchArgument, error) {
	first := group[0].argument
	if len(group) == 1 {
		return &batchArgument{value: first.value}, nil
	}
	var total int64
	for i := range first.tensors {
		total += aligned(joinedBytes(group, i))
	}
	memory, err := first.alloc(group[0].model, total)
	if err != nil {
		return nil, err
	}
	out := &batchArgument{slab: tensor.NewStorage(memory)}
	fields := map[string]any{}
	offset := int64(0)
	for i, t := range first.tensors {
		size := joinedBytes(group, i)
		if err := copyRows(memory, offset, group, i); err != nil {
			return out, err
		}
		spec := t.tensor.Spec()
		spec.ByteOffset, spec.Shape, spec.Strides = offset, spec.Shape.Clone(), nil
		spec.Shape[0] = 0
		for _, n := range rowsOf(group) {
			spec.Shape[0] += n
		}
		joined, err := tensor.New(out.slab, spec)
		if err != nil {
			return out, err
		}
		out.tensors = append(out.tensors, joined)
		put(fields, t.port.path, joined)
		offset += aligned(size)
	}
	for _, v := range first.values {
		put(fields, v.path, v.value)
	}
	if out.value = any(fields); group[0].model.whole {
		out.value = fields[""]
	}
	return out, nil
}

func joinedBytes(group []*batched, input int) (n int64) {
	for _, one := range group {
		n += one.argument.tensors[input].tensor.Bytes()
	}
	return n
}

// copyRows copies an input of all requests to memory, and clears the gap behind it.
func copyRows(memory driver.Memory, offset int64, group []*batched, input int) error {
	mapped, isMapped := memory.(driver.Mapped)
	if !isMapped {
		for _, one := range group {
			data, err := tensor.RawData(one.argument.tensors[input].tensor)
			if err != nil {
				return err
			}
			if _, err := memory.WriteAt(data, offset); err != nil {
				return err
			}
			offset += int64(len(data))
		}
		return nil
	}
	whole, unpin, err := mapped.Pin(true)
	if err != nil {
		return err
	}
	defer unpin()
	for _, one := range group {
		data, err := tensor.RawData(one.argument.tensors[input].tensor)
		if err != nil {
			return err
		}
		offset += int64(copy(whole[offset:], data))
	}
	clear(whole[offset:min(aligned(offset), int64(len(whole)))])
	return nil
}

// splitResult returns the part of a result for each request, by the rows of the requests. The parts share the memory of
// the result.
func splitResult(v any, rows []int64) ([]any, error) {
	var total int64
	for _, n := range rows {
		total += n
	}
	parts := make([]any, len(rows))
	switch v := v.(type) {
	case nil:
		return parts, nil
	case *tensor.Tensor:
		if v == nil {
			return parts, nil
		}
		if shape := v.Shape(); len(shape) == 0 || shape[0] != total {
			return nil, fmt.Errorf("the function returned a tensor of shape %v for %d rows", shape, total)
		}
		at := int64(0)
		for i, n := range rows {
			part, err := v.Narrow(0, at, n)
			if err != nil {
				closeTensors(parts)
				return nil, err
			}
			parts[i] = part.Alias()
			at += n
		}
		return parts, nil
	case []any:
		if int64(len(v)) != total {
			return nil, fmt.Errorf("the function returned %d values for %d rows", len(v), total)
		}
		for i, n := range rows {
			parts[i], v = v[:n], v[n:]
		}
		return parts, nil
	case map[string]any:
		for i := range parts {
			parts[i] = map[string]any{}
		}
		for name, inner := range v {
			of, err := splitResult(inner, rows)
			if err != nil {
				for _, part := range parts {
					closeTensors(part)
				}
				return nil, fmt.Errorf("output '%s': %w", name, err)
			}
			for i := range parts {
				parts[i].(map[string]any)[name] = of[i] //nolint:forcetypeassert // made above
			}
		}
		return parts, nil
	}
	return nil, fmt.Errorf("the function returned a %T, which has no rows", v)
}
