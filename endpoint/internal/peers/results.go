package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// resultIn requests a tensor of bytes that are all Value.
type resultIn struct {
	Bytes int64
	Value uint8
}

// fillers registers the functions that return a fresh, filled tensor: one in reused memory, one in fresh memory.
func fillers(dev driver.Device, r *endpoint.Registry) error {
	fill := func(dev driver.Device, in resultIn) (*tensor.Tensor, error) {
		t, err := tensor.Empty(dev, tensor.Uint8, tensor.Shape{in.Bytes})
		if err != nil {
			return nil, err
		}
		data, err := tensor.Data[uint8](t)
		fillBytes(data, in.Value)
		return t, err
	}
	return errors.Join(
		endpoint.Register(r, "fill", func(ctx context.Context, in resultIn) (*tensor.Tensor, error) {
			return fill(endpoint.ResultDevice(ctx, dev), in)
		}),
		endpoint.Register(r, "fill fresh", func(_ context.Context, in resultIn) (*tensor.Tensor, error) { return fill(dev, in) }),
	)
}

// fillBytes sets all bytes to a value by copying from a block that stays in the first-level cache, because Go's
// compiler emits a memset for zeros only. The block is aligned: copying from unaligned memory takes twice as long.
func fillBytes(data []byte, value byte) {
	var piece struct {
		_     [0]uint64
		bytes [8 << 10]byte
	}
	for i := range piece.bytes {
		piece.bytes[i] = value
	}
	for len(data) > 0 {
		data = data[copy(data, piece.bytes[:]):]
	}
}

// resultFigure holds the durations of fresh tensors of one size, by round.
type resultFigure struct {
	bytes               int64
	ours, fresh, theirs []samples
}

// allResults measures calls that return a fresh, filled tensor. The caller reads both ends of it.
func (b *bench) allResults(ctx context.Context, progress func(string)) error {
	progress("tensors as results")
	c := b.subject("endpoint").client.(oursClient)
	for _, size := range b.plan.results {
		b.results = append(b.results, &resultFigure{bytes: size})
	}
	for range b.plan.rounds {
		for _, f := range b.results {
			if err := b.resultTurn(ctx, c, f); err != nil {
				return fmt.Errorf("results of %s: %w", byteSize(f.bytes), err)
			}
		}
	}
	return nil
}

func (b *bench) resultTurn(ctx context.Context, c oursClient, f *resultFigure) error {
	n := int(min(max(b.plan.filled/f.bytes, 3), 200))
	for _, one := range []struct {
		name string
		to   *[]samples
	}{{"fill", &f.ours}, {"fill fresh", &f.fresh}} {
		turn, err := c.fill(ctx, one.name, f.bytes, n)
		if err != nil {
			return err
		}
		*one.to = append(*one.to, turn)
	}
	if b.iceoryx.path == "" {
		return nil
	}
	turn, err := b.iceoryx.turn(ctx, n, "results", strconv.FormatInt(f.bytes, 10))
	f.theirs = append(f.theirs, turn)
	return err
}

// fill requests n tensors in sequence.
func (c oursClient) fill(ctx context.Context, name string, bytes int64, n int) (samples, error) {
	var turn samples
	for i := range n + max(n/10, 2) {
		start := time.Now()
		x, err := endpoint.Call[*tensor.Tensor](ctx, c.Client, name, resultIn{bytes, uint8(i)})
		if err != nil {
			return nil, err
		}
		data, err := tensor.Data[uint8](x)
		if err == nil && (len(data) != int(bytes) || data[0] != uint8(i) || data[bytes-1] != uint8(i)) {
			err = errors.New("received the wrong tensor")
		}
		if err := errors.Join(err, x.Close()); err != nil {
			return nil, err
		}
		turn = append(turn, time.Since(start))
	}
	return turn[len(turn)-n:], nil
}
