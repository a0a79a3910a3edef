package module

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"

	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// SaveOptions are the options of [Save]. The zero value is fine.
type SaveOptions struct {
	// Metadata is added to that of the state dict, and has precedence.
	Metadata map[string]string
	// PythonTies adds a metadata entry from `dropped name` to `kept name` for each tied name, as the Python library's
	// save_model does. A tied name with another entry in the metadata is then written in full.
	PythonTies bool
	// Format is the format of the file.
	Format Format
	// Progress, if not nil, receives the number of bytes written and the total: once with 0 before the first, and then
	// as they are written, on one goroutine.
	Progress func(done, total int64)
}

// Format is a format of model files.
type Format uint8

const (
	// FormatAuto selects the format by the name of the file: GGUF for .gguf, safetensors for .safetensors. Another name, or
	// a writer, gets GGUF if the state dict was loaded from a GGUF file, otherwise safetensors.
	FormatAuto Format = iota
	// FormatSafetensors is the safetensors format. It has no block-quantised types.
	FormatSafetensors
	// FormatGGUF is the GGUF format. It has fewer types, and its names and ranks are limited.
	FormatGGUF
)

// Save writes the state dict to a file, row-major for any strides, through a temporary file as
// [safetensors.ReplaceFile] does: after an error, or when ctx ends, path is unchanged. Tied names are written once, under
// the name that the metadata records as kept, otherwise the first in alphabetical order. The metadata records the
// others ([safetensors.TiedKey]), and Load restores them. Views that overlap only in part are written in full. Errors
// name the path and the tensor.
//
// What was loaded from a GGUF file is written as one, see [FormatAuto]: with its metadata, and with changes of
// StateDict.Metadata, whose values keep their types. The files of a split model become one file. A part of a GGUF model
// that was attached from another process has lost the types of its metadata; this, and whatever a format cannot
// represent, is an error that wraps [ErrFormat] or the error of the format's rule.
func Save(ctx context.Context, path string, sd *StateDict, opts SaveOptions) error {
	f, err := sd.file(ctx, path, opts)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return safetensors.ReplaceFile(path, f.write)
}

// SaveTo is [Save] to a writer, which it borrows. After an error w has received part of the file.
func SaveTo(ctx context.Context, w io.Writer, sd *StateDict, opts SaveOptions) error {
	f, err := sd.file(ctx, "", opts)
	if err != nil {
		return err
	}
	return f.write(w)
}

// Encode returns the state dict as the bytes of a file, as [Save] writes it. [Decode] is its inverse.
func Encode(ctx context.Context, sd *StateDict, opts SaveOptions) ([]byte, error) {
	f, err := sd.file(ctx, "", opts)
	if err != nil {
		return nil, err
	}
	file := bytes.NewBuffer(make([]byte, 0, f.bytes))
	if err := f.write(file); err != nil {
		return nil, err
	}
	return file.Bytes(), nil
}

// file is a file to be written.
type file struct {
	bytes int64
	write func(w io.Writer) error
}

// file plans the file of the state dict. It reports the start of the progress.
func (sd *StateDict) file(ctx context.Context, path string, opts SaveOptions) (*file, error) {
	entries, foreign, err := sd.foreign()
	if err != nil {
		return nil, err
	}
	format := opts.Format
	if format == FormatAuto {
		format = formatOf(path, foreign)
	}
	switch format {
	case FormatSafetensors:
		return sd.safetensorsFile(ctx, opts)
	case FormatGGUF:
		return sd.ggufFile(ctx, opts, entries, foreign)
	}
	return nil, fmt.Errorf("%w: the format %d is not known", ErrFormat, format)
}

// formatOf applies the rule of [FormatAuto].
func formatOf(path string, foreign bool) Format {
	switch ext := filepath.Ext(path); {
	case ext == ".gguf", ext != ".safetensors" && foreign:
		return FormatGGUF
	}
	return FormatSafetensors
}

func (sd *StateDict) safetensorsFile(ctx context.Context, opts SaveOptions) (*file, error) {
	c := sd.contents(opts)
	h, err := safetensors.NewHeader(c.infos, c.metadata)
	if err != nil {
		return nil, c.advise(err)
	}
	source := sd.source(ctx, h.DataBytes(), opts.Progress)
	return &file{h.FileBytes, func(w io.Writer) error { return safetensors.Write(w, h, source) }}, nil
}

// advise adds to an error about data types which format has them.
func (c *contents) advise(err error) error {
	if slices.ContainsFunc(c.infos, func(t safetensors.TensorInfo) bool { return t.DType.Quantized() }) {
		return fmt.Errorf("%w; block-quantised tensors need a GGUF file: save to a name that ends in .gguf", err)
	}
	return err
}

// contents is the part of a state dict that is written.
type contents struct {
	infos    []safetensors.TensorInfo // of the stored tensors, in the order of the state dict
	dropped  map[string]string        // maps the other names to the names that they are tied to
	metadata map[string]string        // with the ties; nil if empty
	untied   map[string]string        // without the ties
}

func (sd *StateDict) contents(opts SaveOptions) *contents {
	c := &contents{metadata: map[string]string{}}
	maps.Copy(c.metadata, sd.Metadata)
	maps.Copy(c.metadata, opts.Metadata)
	c.untied = maps.Clone(c.metadata)
	delete(c.untied, safetensors.TiedKey)
	c.dropped = sd.dropTied(c.metadata, opts.PythonTies)
	c.infos = make([]safetensors.TensorInfo, 0, sd.Len()-len(c.dropped))
	for name, t := range sd.All() {
		if _, tied := c.dropped[name]; !tied {
			c.infos = append(c.infos, safetensors.TensorInfo{Name: name, DType: t.DType(), Shape: t.Shape()})
		}
	}
	if len(c.metadata) == 0 {
		c.metadata = nil
	}
	if len(c.untied) == 0 {
		c.untied = nil
	}
	return c
}

// Stored returns the tensors that [Save] writes, in the order of the state dict, and the metadata of the file, which
// records the ties of the other names. The metadata is nil if it is empty.
func (sd *StateDict) Stored() (tensors []safetensors.TensorInfo, metadata map[string]string) {
	c := sd.contents(SaveOptions{})
	return c.infos, c.metadata
}

// source returns the source of tensors of files with total bytes. It reports the start of the progress.
func (sd *StateDict) source(ctx context.Context, total int64, progress func(done, total int64)) safetensors.Source {
	done := int64(0)
	advance := func(n int64) {
		done += n
		if progress != nil {
			progress(done, total)
		}
	}
	advance(0)
	return func(w io.Writer, info safetensors.TensorInfo) error {
		t, _ := sd.Get(info.Name)
		_, err := t.WriteTo(&stream{ctx: ctx, w: w, progress: advance})
		return err
	}
}

// dropTied chooses one name of each group of tied ones, and returns the others with the name that each is tied to. It
// records them in the metadata, replacing earlier records.
func (sd *StateDict) dropTied(metadata map[string]string, python bool) map[string]string {
	recorded := map[string]string{}
	if ties, err := safetensors.ParseTies(metadata[safetensors.TiedKey]); err == nil {
		for _, t := range ties {
			recorded[t.Name] = t.Kept
		}
	}
	delete(metadata, safetensors.TiedKey)
	dropped := map[string]string{}
	for _, group := range sd.Aliases() {
		kept := slices.Min(group)
		for _, name := range group {
			// A file that was written with another choice keeps it.
			if said := recorded[name]; said != name && slices.Contains(group, said) {
				kept = said
				break
			}
		}
		for _, name := range group {
			if said, taken := metadata[name]; name == kept || python && taken && said != kept {
				continue
			}
			dropped[name] = kept
			if python {
				metadata[name] = kept
			}
		}
	}
	if len(dropped) > 0 {
		metadata[safetensors.TiedKey] = safetensors.EncodeTies(dropped)
	}
	return dropped
}
