package demonet

import (
	"context"
	"fmt"
	"hash/fnv"
	"math"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// align is the alignment of tensors in the slab, as in a [module.Layout].
const align = 256

// Synthesize creates the network's weights in one new slab on dev. The caller owns them. Equal configs give equal bytes
// on every machine. If ctx ends, it stops between pieces and returns the cause. On error it frees all memory.
func Synthesize(ctx context.Context, dev driver.Device, c Config) (_ *module.StateDict, err error) {
	if err := c.valid(); err != nil {
		return nil, err
	}
	specs := c.Tensors()
	mem, err := dev.Alloc(place(specs))
	if err != nil {
		return nil, fmt.Errorf("synthetic model: %w", err)
	}
	slab := tensor.NewStorage(mem)
	sd := module.NewStateDict()
	defer func() {
		if closeErr := slab.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			_ = sd.Close() // best effort: the first error is returned
		}
	}()
	for _, s := range specs {
		if s.TiedTo == "" {
			if err := fill(ctx, mem, s); err != nil {
				return nil, fmt.Errorf("synthetic tensor %q: %w", s.Name, err)
			}
		}
		t, err := tensor.New(slab, s.Spec)
		if err != nil {
			return nil, fmt.Errorf("synthetic tensor %q: %w", s.Name, err)
		}
		if err := sd.Set(s.Name, t); err != nil {
			return nil, err
		}
	}
	return sd, nil
}

// place sets the offset of each tensor in one slab and returns the slab's size. A tied tensor gets the offset of the
// tensor it shares.
func place(specs []TensorSpec) (bytes int64) {
	offsets := make(map[string]int64, len(specs))
	for i := range specs {
		s := &specs[i]
		if s.TiedTo != "" {
			s.Spec.ByteOffset = offsets[s.TiedTo]
			continue
		}
		s.Spec.ByteOffset = bytes
		offsets[s.Name] = bytes
		size := int64(elementLen)
		for _, d := range s.Spec.Shape {
			size *= d // Config.valid and ConfigFor prevent overflow
		}
		bytes += (size + align - 1) / align * align
	}
	return bytes
}

// fill writes the weights of one tensor. Norms are ones. Other weights are uniform, from a generator seeded by the
// name, with variance 1/width, which keeps the magnitude of activations constant across layers.
func fill(ctx context.Context, mem driver.Memory, s TensorSpec) error {
	shape := s.Spec.Shape
	width := shape[len(shape)-1]
	count := width
	if len(shape) == 2 {
		count *= shape[0]
	}
	h := fnv.New64a()
	h.Write([]byte(s.Name))
	next := generator{state: h.Sum64(), scale: float32(math.Sqrt(3 / float64(width))), ones: strings.Contains(s.Name, "norm")}

	buf := make([]byte, min(elementLen*count, 1<<20))
	at := s.Spec.ByteOffset
	for left := elementLen * count; left > 0; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		piece := buf[:min(left, int64(len(buf)))]
		next.fill(piece)
		if _, err := mem.WriteAt(piece, at); err != nil {
			return err
		}
		at += int64(len(piece))
		left -= int64(len(piece))
	}
	return nil
}
