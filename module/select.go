package module

import (
	"context"
	"fmt"
	"io"
	"maps"

	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// selection is which tensors of a model are loaded, and as what.
type selection struct {
	specs    []NamedSpec
	from     []safetensors.ModelTensor // of each spec that is not tied, which come first
	metadata map[string]string
}

// selectTensors checks what the options ask of a model. Tied names follow the tensors with bytes of their own.
func selectTensors(model *safetensors.Model, opts LoadOptions) (*selection, error) {
	s := &selection{
		specs: make([]NamedSpec, 0, len(model.Tensors)+len(model.Ties)), from: make([]safetensors.ModelTensor, 0, len(model.Tensors)),
		metadata: maps.Clone(model.Metadata),
	}
	wanted := func(name string) bool { return opts.Only == nil || opts.Only(name) }
	names := map[string]string{} // under which a stored tensor that has ties is loaded
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

// spec says what a stored tensor becomes.
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

// tie appends the tied names, but those under which the stored tensor is loaded itself.
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
			spec := s.specs[at[name]] // the model made sure that it is stored
			spec.Name, spec.TiedTo = t.Name, name
			s.specs = append(s.specs, spec)
		}
	}
}

// recordTies makes the metadata's record that of the tensors which were selected.
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

// extents are the parts of the files that are copied as they are, in the order in which they are, where all of them go
// to one slab. Where in that is not known yet.
func (s *selection) extents(files []*safetensors.File) (all []extent) {
	for i, t := range s.from {
		if t.DType == s.specs[i].DType {
			// In the slab tensors have gaps between them that there are not in the file; for what is read it makes no difference.
			src := files[t.File].Header.DataOffset + t.Begin
			all = appendExtent(all, extent{file: t.File, src: src, dst: src, bytes: t.Bytes()})
		}
	}
	return all
}

// fill reads the tensors into the state dict that was made for them.
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

// extent is a run of bytes that is as long in a file as in the slab.
type extent struct {
	file     int
	src, dst int64
	bytes    int64
}

// appendExtent makes neighbours in file and slab one extent: a model whose tensors are all multiples of [Alignment] is
// one extent a file.
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

// countedReader is a reader that stops when its context ends and counts what went through.
type countedReader struct {
	ctx   context.Context
	r     io.Reader
	count func(bytes int64)
}

// Read reads from the reader below.
func (c *countedReader) Read(p []byte) (int, error) {
	if err := context.Cause(c.ctx); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	c.count(int64(n))
	return n, err
}
