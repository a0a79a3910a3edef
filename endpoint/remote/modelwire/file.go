// Package modelwire transfers the bytes of a model's version between hosts. Packages models, mirror, stream and rl use
// it; they define the protocols.
//
// [ReadFile] receives a safetensors file into one new slab of memory. [WriteDelta] and [ApplyDelta] transfer the
// difference between two versions of a tensor. [Open] reads a body whose peer must not stop sending.
package modelwire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// ErrFile reports bytes that are not the announced safetensors file.
var ErrFile = errors.New("not a safetensors file as announced")

// ReadFile reads a safetensors file of size bytes from r into a new slab on dev. It returns an owned state dict with
// the ties that the file records. It validates the header, which may have maxHeader bytes, before it allocates memory.
// Errors are those of the device's allocation, and otherwise [ErrFile] with the cause.
func ReadFile(ctx context.Context, dev driver.Device, r io.Reader, size, maxHeader int64) (*module.StateDict, error) {
	model, err := readHeader(r, size, maxHeader)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	sd, err := module.Empty(dev, Specs(model)) // fill writes all bytes
	if errors.Is(err, driver.ErrOutOfMemory) {
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	sd.Metadata = model.Metadata
	if err := fill(ctx, sd, model, r); err != nil {
		return nil, errors.Join(err, sd.Close())
	}
	return sd, nil
}

// readHeader reads and validates the header of a file, and checks that the file can have the announced size.
func readHeader(r io.Reader, size, maxHeader int64) (*safetensors.Model, error) {
	var length [8]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > uint64(min(safetensors.MaxHeaderBytes, maxHeader)) || int64(n) > size-8 {
		return nil, fmt.Errorf("a header of %d bytes in a file of %d", n, size)
	}
	text := bytes.NewBuffer(length[:])
	if _, err := io.CopyN(text, r, int64(n)); err != nil {
		return nil, fmt.Errorf("the header: %w", unexpected(err))
	}
	return safetensors.NewModel("the file", bytes.NewReader(text.Bytes()), size)
}

// Specs returns the tensors of a model in the model's order, followed by the tied names.
func Specs(model *safetensors.Model) []module.NamedSpec {
	specs := make([]module.NamedSpec, 0, len(model.Tensors)+len(model.Ties))
	for _, t := range model.Tensors {
		specs = append(specs, module.NamedSpec{Name: t.Name, DType: t.DType, Shape: t.Shape})
	}
	for _, tie := range model.Ties {
		t, _ := model.Lookup(tie.Kept) // the model has verified that it exists
		specs = append(specs, module.NamedSpec{Name: tie.Name, DType: t.DType, Shape: t.Shape, TiedTo: t.Name})
	}
	return specs
}

// fill reads the elements of all tensors, which are contiguous in the file.
func fill(ctx context.Context, sd *module.StateDict, model *safetensors.Model, r io.Reader) (err error) {
	w := startWriter()
	defer func() { err = errors.Join(err, w.finish()) }()
	for i := range model.Tensors {
		info := &model.Tensors[i]
		t, found := sd.Get(info.Name)
		if !found {
			return fmt.Errorf("tensor %q is gone", info.Name) // the state dict was made from the model
		}
		if err := fillOne(ctx, t, r, w); err != nil {
			return fmt.Errorf("%w: tensor %q: %w", ErrFile, info.Name, err)
		}
	}
	return nil
}

func fillOne(ctx context.Context, t *tensor.Tensor, r io.Reader, w *writer) error {
	if t.DType().BitSize()%8 != 0 { // the last byte may have unused bits
		return t.FillFrom(r)
	}
	memory, begin := t.Storage().Memory(), t.Spec().ByteOffset
	for at := int64(0); at < t.Bytes(); {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		buffer, err := w.buffer()
		if err != nil {
			return err
		}
		n, err := io.ReadFull(r, buffer[:min(t.Bytes()-at, int64(len(buffer)))])
		w.write(piece{memory, begin + at, buffer[:n]})
		at += int64(n)
		if err != nil {
			return unexpected(err)
		}
	}
	return nil
}

// unexpected converts io.EOF to io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
