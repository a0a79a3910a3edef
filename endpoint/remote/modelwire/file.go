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
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// ErrFile reports bytes that are not the announced safetensors file.
var ErrFile = errors.New("not a safetensors file as announced")

// ErrFileSize reports a file that is larger than its limit.
var ErrFileSize = errors.New("the safetensors file is too large")

// FileLimits holds the limits of a file for [ReadFile].
type FileLimits struct {
	// Size is the exact size of the file; -1 if it is unknown. The header of the file then determines the size.
	Size int64
	// Bytes limits a file whose size is unknown, and Header the bytes of its header.
	Bytes, Header int64
}

// ReadFile reads a safetensors file from r into a new slab on dev. It returns an owned state dict with the ties that the
// file records. It validates the header before it allocates memory. If the size is unknown, it reads r to its end, where
// no bytes may follow the file. Errors are [ErrFileSize], those of the device's allocation, and otherwise [ErrFile] with
// the cause.
func ReadFile(ctx context.Context, dev driver.Device, r io.Reader, limits FileLimits) (*module.StateDict, error) {
	model, err := readHeader(r, limits)
	if errors.Is(err, ErrFileSize) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	m, err := ManifestOfFile(model, Limits{})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	a, err := NewArrival(dev, m, 0)
	if errors.Is(err, driver.ErrOutOfMemory) {
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	if err = fill(ctx, a, r); err == nil && limits.Size < 0 {
		err = atEnd(r)
	}
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a.Take(), nil
}

// atEnd returns an error unless r ends without another byte.
func atEnd(r io.Reader) error {
	n, err := io.ReadFull(r, make([]byte, 1))
	switch {
	case n > 0:
		return fmt.Errorf("%w: bytes follow the last tensor", ErrFile)
	case errors.Is(err, io.EOF):
		return nil
	}
	return fmt.Errorf("%w: %w", ErrFile, err)
}

// sizeOfFile returns the size of a file from its header, whose offsets NewModel validates.
func sizeOfFile(header []byte, limit int64) (int64, error) {
	var entries map[string]struct {
		Offsets [2]int64 `json:"data_offsets"`
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(header[8:], &all); err != nil {
		return 0, fmt.Errorf("the header: %w", err)
	}
	delete(all, "__metadata__")
	text, _ := json.Marshal(all) // cannot fail: it was just decoded
	if err := json.Unmarshal(text, &entries); err != nil {
		return 0, fmt.Errorf("the header: %w", err)
	}
	end := int64(0)
	for _, e := range entries {
		end = max(end, e.Offsets[1])
	}
	if end > limit-int64(len(header)) {
		return 0, fmt.Errorf("%w: %d bytes of tensors, the limit is %d", ErrFileSize, end, limit)
	}
	return int64(len(header)) + end, nil
}

// readHeader reads and validates the header of a file, and checks that the file can have the announced size.
func readHeader(r io.Reader, limits FileLimits) (*safetensors.Model, error) {
	size := limits.Size
	if size < 0 {
		size = limits.Bytes
	}
	var length [8]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > uint64(min(safetensors.MaxHeaderBytes, limits.Header)) || int64(n) > size-8 {
		return nil, fmt.Errorf("a header of %d bytes in a file of %d", n, size)
	}
	text := bytes.NewBuffer(length[:])
	if _, err := io.CopyN(text, r, int64(n)); err != nil {
		return nil, fmt.Errorf("the header: %w", unexpected(err))
	}
	if limits.Size < 0 {
		var err error
		if size, err = sizeOfFile(text.Bytes(), limits.Bytes); err != nil {
			return nil, err
		}
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
func fill(ctx context.Context, a *Arrival, r io.Reader) (err error) {
	w := startWriter()
	defer func() { err = errors.Join(err, w.finish()) }()
	for i, d := range a.Tensors { // tied names follow the tensors of the file
		if d == nil {
			continue
		}
		var err error
		if e := &a.Manifest.Tensors[i]; e.DType.BitSize()%8 != 0 { // the last byte may have unused bits
			t, _ := a.sd.Get(e.Name)
			err = t.FillFrom(r)
		} else if d.direct {
			_, err = d.readDirect(watched{ctx, r}, 0, e.Bytes, func(int64, []byte) {})
		} else {
			err = fillOne(ctx, d, r, w)
		}
		if err != nil {
			return fmt.Errorf("%w: tensor %q: %w", ErrFile, d.Entry.Name, err)
		}
	}
	return nil
}

// watched is a reader that fails when its context ends.
type watched struct {
	ctx context.Context
	r   io.Reader
}

// Read implements io.Reader.
func (w watched) Read(p []byte) (int, error) {
	if w.ctx.Err() != nil {
		return 0, context.Cause(w.ctx)
	}
	return w.r.Read(p)
}

func fillOne(ctx context.Context, d *Destination, r io.Reader, w *writer) error {
	for at := int64(0); at < d.Entry.Bytes; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		buffer, err := w.buffer()
		if err != nil {
			return err
		}
		n, err := io.ReadFull(r, buffer[:min(d.Entry.Bytes-at, int64(len(buffer)))])
		w.write(piece{d, at, buffer[:n]})
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
