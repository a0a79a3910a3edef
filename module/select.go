package module

import (
	"context"
	"fmt"
	"io"
	"maps"

	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// selection holds the tensors of a model to load and their types.
type selection struct {
	specs    []NamedSpec
	from     []safetensors.ModelTensor // of each spec that is not tied; these come first
	metadata map[string]string
}

// selectTensors applies the options to a model. Tied names follow the tensors with separate bytes.
func selectTensors(model *safetensors.Model, opts LoadOptions) (*selection, error) {
	s := &selection{
		specs: make([]NamedSpec, 0, len(model.Tensors)+len(model.Ties)), from: make([]safetensors.ModelTensor, 0, len(model.Tensors)),
		metadata: maps.Clone(model.Metadata),
	}
	wanted := func(name string) bool { return opts.Only == nil || opts.Only(name) }
	names := map[string]string{} // names of the loaded copies of stored tensors with ties
	var ties []safetensors.Tie
	for _, t := range model.Ties {
		if err := checkName(t.Name); err != nil {
			return nil, fmt.Errorf("%s: %w: %w", model.Path, safetensors.ErrTies, err)
		}
		if !wanted(t.Name) {
			continue
		}
		ties = append(ties, t)
		if _, named := names[t.Kept]; !named {
			names[t.Kept] = t.Name
			if wanted(t.Kept) {
				names[t.Kept] = t.Kept
			}
		}
	}
	for _, t := range model.Tensors {
		if err := checkName(t.Name); err != nil {
			return nil, fmt.Errorf("%s: %w", model.Files[t.File].Path, err)
		}
		name, named := names[t.Name]
		switch {
		case named:
		case wanted(t.Name):
			name = t.Name
		default:
			continue
		}
		spec, err := opts.spec(name, t)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", model.Files[t.File].Path, err)
		}
		names[t.Name] = name
		s.specs, s.from = append(s.specs, spec), append(s.from, t)
	}
	s.tie(ties, names)
	if opts.Only != nil {
		s.recordTies()
	}
	return s, nil
}

// spec returns the description of a loaded tensor.
func (opts *LoadOptions) spec(name string, t safetensors.ModelTensor) (NamedSpec, error) {
	spec := NamedSpec{Name: name, DType: t.DType, Shape: t.Shape}
	if opts.Device != nil {
		spec.Device = opts.Device(t.Name)
	}
	if opts.DType != nil {
		spec.DType = opts.DType(t.Name, t.DType)
		if err := tensor.CheckConversion(t.DType, spec.DType); err != nil {
			return spec, fmt.Errorf("tensor %s: %w", quote(t.Name), err)
		}
	}
	return spec, nil
}

// tie appends the tied names, except those under which the stored tensor itself is loaded.
func (s *selection) tie(ties []safetensors.Tie, names map[string]string) {
	if len(ties) == 0 {
		return
	}
	at := make(map[string]int, len(s.specs))
	for i := range s.specs {
		at[s.specs[i].Name] = i
	}
	for _, t := range ties {
		if name := names[t.Kept]; name != t.Name {
			spec := s.specs[at[name]] // the model guarantees that it is stored
			spec.Name, spec.TiedTo = t.Name, name
			s.specs = append(s.specs, spec)
		}
	}
}

// recordTies reduces the metadata's record to the selected tensors.
func (s *selection) recordTies() {
	if _, recorded := s.metadata[safetensors.TiedKey]; !recorded {
		return
	}
	ties := map[string]string{}
	for _, spec := range s.specs[len(s.from):] {
		ties[spec.Name] = spec.TiedTo
	}
	delete(s.metadata, safetensors.TiedKey)
	if len(ties) > 0 {
		s.metadata[safetensors.TiedKey] = safetensors.EncodeTies(ties)
	}
}

// extents returns the parts of the files that are copied unchanged, in file order, if all of them are in one slab.
// Their places in the slab are not known yet.
func (s *selection) extents(files []*safetensors.File) (all []extent) {
	for i, t := range s.from {
		if t.DType == s.specs[i].DType {
			// The slab has gaps between tensors that the file does not have; this does not affect reading.
			src := files[t.File].Header.DataOffset + t.Begin
			all = appendExtent(all, extent{file: t.File, src: src, dst: src, bytes: t.Bytes()})
		}
	}
	return all
}

// fill reads the tensors into the state dict that was created for them.
func (s *selection) fill(ctx context.Context, sd *StateDict, c *copier) error {
	extents, storages := map[*tensor.Storage][]extent{}, sd.Storages()
	var casts []int
	for i, t := range s.from {
		c.total += t.Bytes()
		x := sd.at(i)
		if t.DType != x.DType() {
			casts = append(casts, i)
			continue
		}
		e := extent{
			file: t.File, src: c.model.Files[t.File].Header.DataOffset + t.Begin, dst: x.Spec().ByteOffset, bytes: t.Bytes(),
		}
		extents[x.Storage()] = appendExtent(extents[x.Storage()], e)
	}
	c.advance(0)
	for _, storage := range storages {
		c.mem = storage.Memory()
		if err := c.copy(ctx, extents[storage]); err != nil {
			return err
		}
	}
	for _, i := range casts {
		t := s.from[i]
		r := &countedReader{ctx: ctx, r: c.model.Reader(t), count: c.advance}
		if err := sd.at(i).FillFromAs(r, t.DType); err != nil {
			return c.fail(t.File, fmt.Errorf("tensor %s: %w", quote(t.Name), err))
		}
	}
	return nil
}

// extent is a range of bytes with the same length in a file and in the slab.
type extent struct {
	file     int
	src, dst int64
	bytes    int64
}

// appendExtent merges extents that are adjacent in file and slab: a model whose tensors are multiples of [Alignment]
// has one extent for each file.
func appendExtent(all []extent, e extent) []extent {
	if e.bytes == 0 {
		return all
	}
	if n := len(all) - 1; n >= 0 {
		last := &all[n]
		if last.file == e.file && last.src+last.bytes == e.src && last.dst+last.bytes == e.dst {
			last.bytes += e.bytes
			return all
		}
	}
	return append(all, e)
}

// countedReader is a reader that stops when its context ends and counts its bytes.
type countedReader struct {
	ctx   context.Context
	r     io.Reader
	count func(bytes int64)
}

// Read reads from the wrapped reader.
func (c *countedReader) Read(p []byte) (int, error) {
	if err := ended.Cause(c.ctx); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	c.count(int64(n))
	return n, err
}
