package module

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// loadPiece is how much is read between two looks at the context: some milliseconds from the page cache, and long enough
// for a driver.Loader to use all of its goroutines.
const loadPiece = 64 << 20

// LoadOptions are the options of [Load]. The zero value is fine.
type LoadOptions struct {
	// Progress, if not nil, is told how many bytes of how many are on the device: once with 0 before the first, and then as
	// they arrive, from one goroutine at a time.
	Progress func(done, total int64)
	// PythonTies makes [Load] take metadata entries for ties as the Python library's save_model writes them, see
	// [safetensors.Model.TieByMetadata]. Without it only ties that are recorded as such are made ([safetensors.TiedKey]).
	PythonTies bool
}

// Load reads a safetensors model (see [safetensors.Open] for what path may be) into one new slab of memory on dev and
// returns an owned state dict. Tied names are tied again. The device must outlive the state dict. Headers are checked before
// memory is taken. When ctx ends, Load returns its error within the time of one piece of 64 MiB. On any error nothing is
// left: no memory, no descriptor, no goroutine. Errors name the file.
func Load(ctx context.Context, dev driver.Device, path string, opts LoadOptions) (*StateDict, error) {
	model, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	if opts.PythonTies {
		model.TieByMetadata()
	}
	sd, err := LoadModel(ctx, dev, model, opts)
	// Nothing was written to these files, so closing them cannot lose anything.
	_ = model.Close()
	return sd, err
}

// LoadModel is [Load] for a model that is open already, with the ties that it has. It borrows the model.
func LoadModel(ctx context.Context, dev driver.Device, model *safetensors.Model, opts LoadOptions) (_ *StateDict, err error) {
	layout, err := PlanLayout(model, dev.Info().Granularity)
	if err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", model.Path, err)
	}
	if len(layout.Tensors) == 0 {
		sd := NewStateDict()
		sd.Metadata = layout.Metadata
		return sd, nil
	}
	mem, err := dev.Alloc(layout.SlabBytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", model.Path, err)
	}
	slab := tensor.NewStorage(mem)
	// The tensors hold references of their own; without any, this frees the memory.
	defer func() {
		if closeErr := slab.Close(); err == nil {
			err = closeErr
		}
	}()
	c := copier{model: model, mem: mem, progress: opts.Progress, total: layout.DataBytes()}
	if err := c.copy(ctx, layout.extents()); err != nil {
		return nil, err
	}
	return FromManifest(layout.Manifest(dev.Info()), []*tensor.Storage{slab})
}

// copier brings extents of a model's files into memory.
type copier struct {
	model       *safetensors.Model
	mem         driver.Memory
	progress    func(done, total int64)
	done, total int64
}

// advance reports n more bytes.
func (c *copier) advance(n int64) {
	c.done += n
	if c.progress != nil {
		c.progress(c.done, c.total)
	}
}

// copy copies the extents, the memory's own way if it has one.
func (c *copier) copy(ctx context.Context, extents []extent) error {
	c.advance(0)
	loader, ok := c.mem.(driver.Loader)
	if !ok {
		return c.copyWindows(ctx, extents)
	}
	for _, e := range extents {
		for at := int64(0); at < e.bytes; at += loadPiece {
			if err := context.Cause(ctx); err != nil {
				return c.fail(e.file, err)
			}
			n := min(loadPiece, e.bytes-at)
			if err := loader.LoadAt(c.model.Files[e.file].Source(), e.src+at, e.dst+at, n, c.advance); err != nil {
				return c.fail(e.file, err)
			}
		}
	}
	return nil
}

// fail names the file in an error. A file that ended early was cut off after its header was checked.
func (c *copier) fail(file int, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("%w: it was cut off while it was read", safetensors.ErrTruncated)
	}
	return fmt.Errorf("%s: %w", c.model.Files[file].Path, err)
}
