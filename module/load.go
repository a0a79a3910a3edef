package module

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// loadPiece is the number of bytes read between two checks of the context: some milliseconds from the page cache, and
// enough for a driver.Loader to use all of its goroutines.
const loadPiece = 64 << 20

// LoadOptions are the options of [Load]. The zero value is fine.
type LoadOptions struct {
	// Progress, if not nil, receives the number of bytes on the device and the total: once with 0 before the first, and
	// then as they arrive, from one goroutine at a time.
	Progress func(done, total int64)
	// Warn, if not nil, receives a sentence for each thing about the files that does not prevent the load, such as the
	// [safetensors.Model.Warnings]. It is called before memory is allocated.
	Warn func(warning string)
	// PythonTies makes [Load] treat metadata entries as ties, as the Python library's save_model writes them, see
	// [safetensors.Model.TieByMetadata]. Without it only recorded ties are made ([safetensors.TiedKey]).
	PythonTies bool
	// Only, if not nil, selects the tensors to load by name. The others are neither read nor allocated. A tied name can
	// be selected without the stored one.
	Only func(name string) bool
	// DType, if not nil, returns the data type of a tensor; it is called once for each stored tensor, and tied names
	// follow. The elements are converted as by [tensor.Tensor.To] while they are read. An unsupported conversion fails
	// with [tensor.ErrDType] before memory is allocated.
	DType func(name string, stored tensor.DType) tensor.DType
	// Device, if not nil, returns the device of a tensor; nil means the device of the call. It is called once for each
	// stored tensor, and tied names follow. There is one slab for each device.
	Device func(name string) driver.Device
	// FileLayout makes the slab a safetensors file: it begins with a header, and the tensors follow without gaps. A
	// process that has the descriptor of host memory opens it with any safetensors reader, as /proc/self/fd/N. There is
	// one slab for each file of the model. Tensors are aligned as in the file, to 8 bytes or less, instead of to
	// [Alignment]. A model whose bytes are not a multiple of 8 fails with [ErrLayout], and so does FileLayout together
	// with Only, DType or Device.
	FileLayout bool
}

// Load reads a safetensors model (see [safetensors.Open] for path) into one new slab of memory on dev and returns an
// owned state dict. It restores ties. A GGUF file is read too, see [OpenModel]; without Only, DType and Device its slab
// is the file with its metadata, as with FileLayout. The device must outlive the state dict. Headers are checked before
// memory is allocated. If a file is written, truncated or replaced during the load, the error is [safetensors.ErrChanged].
// When ctx ends, Load returns its error within the time of one piece of 64 MiB. After an error no memory, descriptor or
// goroutine is left. Errors name the file.
func Load(ctx context.Context, dev driver.Device, path string, opts LoadOptions) (*StateDict, error) {
	if err := driver.CheckDevice(dev); err != nil {
		return nil, err
	}
	model, err := OpenModel(path)
	if err != nil {
		return nil, err
	}
	sd, err := loadTied(ctx, dev, model, opts)
	// The files were only read, so closing them cannot lose data.
	_ = model.Close()
	return sd, err
}

// LoadFrom is [Load] of a safetensors or GGUF file of size bytes that r reads. It borrows r and reads parts of it
// concurrently. A part of a split model is [gguf.ErrSplit].
func LoadFrom(ctx context.Context, dev driver.Device, r io.ReaderAt, size int64, opts LoadOptions) (*StateDict, error) {
	model, err := modelOf(r, size)
	if err != nil {
		return nil, err
	}
	return loadTied(ctx, dev, model, opts)
}

// Decode is [Load] of the bytes of a safetensors file, which it borrows. [Encode] is its inverse.
func Decode(ctx context.Context, dev driver.Device, data []byte, opts LoadOptions) (*StateDict, error) {
	return LoadFrom(ctx, dev, bytes.NewReader(data), int64(len(data)), opts)
}

func loadTied(ctx context.Context, dev driver.Device, model *safetensors.Model, opts LoadOptions) (*StateDict, error) {
	if opts.PythonTies {
		model.TieByMetadata()
	}
	return LoadModel(ctx, dev, model, opts)
}

// LoadModel is [Load] for an open model, with the ties that it has. It borrows the model.
func LoadModel(ctx context.Context, dev driver.Device, model *safetensors.Model, opts LoadOptions) (*StateDict, error) {
	if err := driver.CheckDevice(dev); err != nil {
		return nil, err
	}
	if opts.Warn != nil {
		for _, warning := range model.Warnings() {
			opts.Warn(warning)
		}
	}
	sd, err := readModel(ctx, dev, model, opts)
	// A file that was cut off or written to is the reason of most errors of a reader.
	if changed := model.Unchanged(); changed != nil && (err == nil || ended.Cause(ctx) == nil) {
		return nil, errors.Join(changed, err, sd.Close())
	}
	return sd, err
}

// readModel reads the tensors of a model.
func readModel(ctx context.Context, dev driver.Device, model *safetensors.Model, opts LoadOptions) (*StateDict, error) {
	if opts.FileLayout || model.Foreign && !opts.selects() {
		return loadFiles(ctx, dev, model, opts)
	}
	s, err := selectTensors(model, opts)
	if err != nil {
		return nil, err
	}
	if err := ended.Cause(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", model.Path, err)
	}
	c := &copier{model: model, progress: opts.Progress}
	if opts.Device == nil { // allocating memory takes time, in which the disk can work already
		c.ahead = startReadAhead(model.Files, s.extents(model.Files))
		defer c.ahead.stop()
	}
	sd, err := New(dev, s.specs)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", model.Path, err)
	}
	sd.Metadata = s.metadata
	err = s.fill(ctx, sd, c)
	if err == nil && model.Foreign {
		sd.entries, err = entriesOf(model)
	}
	if err != nil {
		return nil, errors.Join(err, sd.Close())
	}
	return sd, nil
}

// copier copies extents of a model's files into memory.
type copier struct {
	model       *safetensors.Model
	mem         driver.Memory // the current destination
	progress    func(done, total int64)
	done, total int64
	ahead       *readAhead // reads the files ahead of the copy; nil without read-ahead
}

// advance reports n more bytes.
func (c *copier) advance(n int64) {
	c.done += n
	c.ahead.advance(n)
	if c.progress != nil {
		c.progress(c.done, c.total)
	}
}

// copy copies the extents, with the memory's own method if it has one.
func (c *copier) copy(ctx context.Context, extents []extent) error {
	if c.ahead == nil {
		c.ahead = startReadAhead(c.model.Files, extents)
		defer func() {
			c.ahead.stop()
			c.ahead = nil
		}()
	}
	loader, ok := c.mem.(driver.Loader)
	if !ok {
		return c.copyWindows(ctx, extents)
	}
	for _, e := range extents {
		for at := int64(0); at < e.bytes; at += loadPiece {
			if err := ended.Cause(ctx); err != nil {
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

// fail adds the file to an error. A file that ended early became shorter after its header was checked.
func (c *copier) fail(file int, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("%w: it was cut off while it was read", safetensors.ErrTruncated)
	}
	return fmt.Errorf("%s: %w", c.model.Files[file].Path, err)
}

// streamPiece is the number of bytes written between two checks of the context.
const streamPiece = 1 << 20

// stream is a writer that stops when its context ends and counts its bytes.
type stream struct {
	ctx      context.Context
	w        io.Writer
	progress func(bytes int64)
}

// Write writes p in pieces.
func (s *stream) Write(p []byte) (int, error) {
	written := 0
	for {
		if err := ended.Cause(s.ctx); err != nil {
			return written, err
		}
		piece := p[written:min(len(p), written+streamPiece)]
		n, err := s.w.Write(piece)
		written += n
		if s.progress != nil {
			s.progress(int64(n))
		}
		if err != nil || written == len(p) {
			return written, err
		}
	}
}
