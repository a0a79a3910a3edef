package module

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// selects reports whether the options change which tensors are loaded, their types or their places.
func (opts *LoadOptions) selects() bool {
	return opts.Only != nil || opts.DType != nil || opts.Device != nil
}

// fileImage is a slab that contains a file of the model.
type fileImage struct {
	// prefix is the header of the slab; empty if the file is copied from its first byte.
	prefix []byte
	// from is the offset in the file of the first copied byte, which is placed behind the prefix.
	from int64
	// bytes is the size of the slab.
	bytes int64
}

// place returns the offset in the slab of a byte of the file.
func (f *fileImage) place(off int64) int64 { return int64(len(f.prefix)) + off - f.from }

// loadFiles loads a model with one slab for each file, which is a file of the same format.
func loadFiles(ctx context.Context, dev driver.Device, model *safetensors.Model, opts LoadOptions) (_ *StateDict, err error) {
	if opts.selects() {
		return nil, fmt.Errorf("%s: %w: it is a whole file, so tensors cannot be selected, converted or moved", model.Path, ErrLayout)
	}
	images, manifest, err := planImages(model, dev.Info())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", model.Path, err)
	}
	if err := ended.Cause(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", model.Path, err)
	}
	c := &copier{model: model, progress: opts.Progress}
	for i, f := range model.Files {
		c.total += f.Header.FileBytes - images[i].from
	}
	c.advance(0)
	storages := make([]*tensor.Storage, 0, len(images))
	defer func() { // the tensors hold their own references
		for _, s := range storages {
			err = errors.Join(err, s.Close())
		}
	}()
	for i := range images {
		mem, err := dev.Alloc(images[i].bytes)
		if err != nil {
			return nil, fmt.Errorf("slab of %s: %w", model.Files[i].Path, err)
		}
		storages = append(storages, tensor.NewStorage(mem))
		if err := c.copyFile(ctx, mem, i, &images[i]); err != nil {
			return nil, err
		}
	}
	return FromManifest(manifest, storages)
}

// copyFile fills the slab of one file.
func (c *copier) copyFile(ctx context.Context, mem driver.Memory, file int, image *fileImage) error {
	if len(image.prefix) > 0 {
		if _, err := mem.WriteAt(image.prefix, 0); err != nil {
			return fmt.Errorf("%s: write the header: %w", c.model.Files[file].Path, err)
		}
	}
	c.mem = mem
	var extents []extent
	return c.copy(ctx, appendExtent(extents, extent{
		file: file, src: image.from, dst: int64(len(image.prefix)), bytes: c.model.Files[file].Header.FileBytes - image.from,
	}))
}

// planImages plans the slabs and describes the state dict over them.
func planImages(model *safetensors.Model, device driver.Info) ([]fileImage, *Manifest, error) {
	images := make([]fileImage, len(model.Files))
	m := &Manifest{Metadata: maps.Clone(model.Metadata)}
	for i, f := range model.Files {
		if err := images[i].plan(f.Header, model.Foreign, device.Granularity); err != nil {
			return nil, nil, err
		}
		m.Storages = append(m.Storages, StorageSpec{Bytes: images[i].bytes, Device: device.UUID, DeviceType: device.Type})
	}
	at := make(map[string]int, len(model.Tensors))
	for _, t := range model.Tensors {
		at[t.Name] = len(m.Tensors)
		m.Tensors = append(m.Tensors, TensorSpec{Name: t.Name, Storage: uint32(t.File), Spec: tensor.Spec{
			DType: t.DType, Shape: t.Shape, ByteOffset: images[t.File].place(model.Files[t.File].Header.DataOffset + t.Begin),
		}})
	}
	for _, tie := range model.Ties {
		t := m.Tensors[at[tie.Kept]] // the model guarantees that it is stored
		t.Name = tie.Name
		m.Tensors = append(m.Tensors, t)
	}
	return images, m, m.Validate()
}

// plan computes the image of one file. A GGUF file is copied as it is; readers ignore the zeros behind its end. A
// safetensors file must end with its last tensor, so its header is extended with spaces until the whole fills the slab.
func (f *fileImage) plan(h *safetensors.Header, foreign bool, granularity int64) error {
	var ok bool
	if foreign {
		if f.bytes, ok = roundUp(h.FileBytes, max(granularity, Alignment)); !ok {
			return ErrTooLarge
		}
		return nil
	}
	text, err := h.Encode()
	if err != nil {
		return err
	}
	data := h.DataBytes()
	if data%8 != 0 {
		return fmt.Errorf("%w: the %d bytes of its tensors are not a multiple of 8, so they cannot be aligned behind the header", ErrLayout, data)
	}
	if data > math.MaxInt64-int64(len(text)) {
		return ErrTooLarge
	}
	if f.bytes, ok = roundUp(int64(len(text))+data, max(granularity, Alignment)); !ok {
		return ErrTooLarge
	}
	f.from = h.DataOffset
	f.prefix = append(text, strings.Repeat(" ", int(f.bytes-data)-len(text))...)
	binary.LittleEndian.PutUint64(f.prefix, uint64(len(f.prefix)-8))
	return nil
}
