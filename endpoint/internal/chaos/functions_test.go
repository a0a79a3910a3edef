//go:build unix

package chaos

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// made is an argument that determines the result.
type made struct {
	Key    uint64
	Millis int64
}

// offered is the prefix of the endpoints that workers offer.
const offered = "offered-"

// functions returns the endpoints that clients call. Names of functions that workers offer begin with offered. Workers
// cannot offer a cache key, so each call of theirs has a separate result.
func functions(dev driver.Device, prefix string) (*endpoint.Registry, error) {
	r := endpoint.NewRegistry()
	one := func(key uint64) (*tensor.Tensor, error) { return makeTensor(dev, key, 0, oneSpec(key)) }
	object := []endpoint.Option{endpoint.Managed()}
	cached := []endpoint.Option{endpoint.Cached()}
	if prefix == "" {
		cached = []endpoint.Option{endpoint.CacheKey("{Key}")}
		object = append(object, endpoint.CacheKey("{Key}"))
	}
	err := errors.Join(
		endpoint.Register(r, prefix+"same", func(_ context.Context, t *tensor.Tensor) (*tensor.Tensor, error) { return t.Alias(), nil }),
		endpoint.Register(r, prefix+"sum", func(_ context.Context, t *tensor.Tensor) (uint64, error) { return sum(t) }),
		endpoint.Register(r, prefix+"fail", func(_ context.Context, text string) (int, error) { return 0, errors.New(text) }),
		endpoint.Register(r, prefix+"panic", func(_ context.Context, text string) (int, error) { panic(text) }),
		endpoint.Register(r, prefix+"sleep", func(ctx context.Context, in made) (uint64, error) { return in.Key, sleep(ctx, in.Millis) }),
		endpoint.Register(r, prefix+"make", func(ctx context.Context, in made) (*tensor.Tensor, error) {
			if err := sleep(ctx, in.Millis); err != nil {
				return nil, err
			}
			return one(in.Key)
		}, cached...),
		endpoint.Register(r, prefix+"object", func(ctx context.Context, in made) (*tensor.Tensor, error) {
			if err := sleep(ctx, in.Millis); err != nil {
				return nil, err
			}
			return one(in.Key)
		}, object...),
		endpoint.Register(r, prefix+"job", func(ctx context.Context, in made) (*tensor.Tensor, error) {
			for i := range int64(4) {
				task.Report(ctx, i, 4, "step")
				if err := sleep(ctx, in.Millis/4); err != nil {
					return nil, err
				}
			}
			return one(in.Key)
		}, endpoint.AsTask()),
		endpoint.RegisterStream(r, prefix+"items", func(_ context.Context, n uint64) iter.Seq2[*tensor.Tensor, error] {
			return func(yield func(*tensor.Tensor, error) bool) {
				for i := range n {
					if t, err := one(i); !yield(t, err) || err != nil {
						return
					}
				}
			}
		}),
	)
	return r, err
}

// numFunctions is the number of endpoints that functions returns.
const numFunctions = 9

// sleep waits, or returns an error if ctx ends first.
func sleep(ctx context.Context, millis int64) error {
	select {
	case <-time.After(time.Duration(millis) * time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
