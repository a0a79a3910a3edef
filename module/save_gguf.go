package module

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/sharedtensor/sharedtensor/module/gguf"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// architectureKey is in the metadata of each model in GGUF.
const architectureKey = "general.architecture"

// splitKeys describe a part of a split model, so they are not written: a saved model is one file.
var splitKeys = []string{splitNo, splitCount, splitTensors}

// ggufFile plans a GGUF file. entries is the metadata of the file from which the state dict was loaded, if foreign.
func (sd *StateDict) ggufFile(ctx context.Context, opts SaveOptions, entries gguf.Metadata, foreign bool) (*file, error) {
	if opts.PythonTies {
		return nil, fmt.Errorf("%w: Python's load_model reads no GGUF, so its ties cannot be recorded", ErrFormat)
	}
	c := sd.contents(opts)
	if _, model := c.metadata[architectureKey]; model && !foreign {
		return nil, fmt.Errorf("%w: only parts of a GGUF file were loaded, and the types of its metadata are not known here; "+
			"save it where it was loaded, load the whole file, or save a .safetensors file", ErrFormat)
	}
	texts := maps.Clone(c.metadata)
	if sd.Metadata == nil { // the metadata was not changed, it is not known
		texts = entries.Texts()
		maps.Copy(texts, c.metadata)
	}
	metadata, err := mergeEntries(entries, texts)
	if err != nil {
		return nil, err
	}
	infos, total := make([]gguf.TensorInfo, len(c.infos)), int64(0)
	for i, t := range c.infos {
		infos[i] = gguf.TensorInfo{Name: t.Name, DType: t.DType, Shape: t.Shape}
	}
	h, err := gguf.NewHeader(infos, metadata)
	if err != nil {
		return nil, fmt.Errorf("%w; GGUF cannot represent it: save a .safetensors file, or change it", err)
	}
	for _, t := range h.Tensors {
		total += t.Bytes()
	}
	source := sd.source(ctx, total, opts.Progress)
	return &file{h.FileBytes, func(w io.Writer) error {
		return gguf.Write(w, h, func(w io.Writer, t gguf.TensorInfo) error { return source(w, safetensors.TensorInfo{Name: t.Name}) })
	}}, nil
}

// mergeEntries returns the entries with the values of texts. A value keeps its type. Entries without a text of their own,
// such as arrays, are kept; others that texts lacks were deleted.
func mergeEntries(entries gguf.Metadata, texts map[string]string) (gguf.Metadata, error) {
	merged, stored := make(gguf.Metadata, 0, len(entries)), entries.Texts()
	added := maps.Clone(texts)
	for _, e := range entries {
		text, wanted := added[e.Key]
		delete(added, e.Key)
		old, textual := stored[e.Key]
		switch {
		case slices.Contains(splitKeys, e.Key) || textual && !wanted:
			continue
		case wanted && (!textual || text != old):
			var err error
			if e.Value, err = valueLike(e.Value, text); err != nil {
				return nil, fmt.Errorf("metadata %s: %w", quote(e.Key), err)
			}
		}
		merged = append(merged, e)
	}
	for _, key := range slices.Sorted(maps.Keys(added)) {
		if !slices.Contains(splitKeys, key) {
			merged = append(merged, gguf.Entry{Key: key, Value: added[key]})
		}
	}
	return merged, nil
}

// valueLike returns text as a value of the same type as old.
func valueLike(old any, text string) (value any, err error) {
	signed := func(bits int) (n int64) { n, err = strconv.ParseInt(text, 10, bits); return n }
	unsigned := func(bits int) (n uint64) { n, err = strconv.ParseUint(text, 10, bits); return n }
	float := func(bits int) (f float64) { f, err = strconv.ParseFloat(text, bits); return f }
	switch old.(type) {
	case string:
		value = text
	case bool:
		value, err = strconv.ParseBool(text)
	case uint8:
		value = uint8(unsigned(8))
	case uint16:
		value = uint16(unsigned(16))
	case uint32:
		value = uint32(unsigned(32))
	case uint64:
		value = unsigned(64)
	case int8:
		value = int8(signed(8))
	case int16:
		value = int16(signed(16))
	case int32:
		value = int32(signed(32))
	case int64:
		value = signed(64)
	case float32:
		value = float32(float(32))
	case float64:
		value = float(64)
	default:
		return nil, fmt.Errorf("%w: the file has an array, which a text cannot replace; delete it from the metadata", ErrFormat)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the file has a %T, and %s is none", ErrFormat, old, quote(text))
	}
	return value, nil
}

// foreign returns the metadata of the GGUF files from which the state dict was loaded, and whether there are any. If whole
// files were loaded, also by another process, their slabs begin with it.
func (sd *StateDict) foreign() (entries gguf.Metadata, found bool, err error) {
	headers, err := sd.images()
	if err != nil || len(headers) == 0 {
		return sd.entries, sd.entries != nil, err
	}
	return mergeHeaders(headers), true, nil
}

// images returns the headers of the storages that are GGUF files, in the order of the parts of a split model. The tensors of
// such a storage are where its header says that there are tensors.
func (sd *StateDict) images() ([]*gguf.Header, error) {
	storages, index := sd.storages()
	headers := make([]*gguf.Header, len(storages))
	for i, s := range storages {
		mem := s.Memory()
		magic := make([]byte, len(gguf.Magic))
		if s.Bytes() < int64(len(magic)) {
			continue
		}
		if err := readFull(mem, magic, 0); err != nil {
			return nil, err
		}
		if string(magic) != gguf.Magic {
			continue
		}
		// Tensors that begin with these bytes are followed by no header.
		headers[i], _ = gguf.ReadHeader(mem, s.Bytes())
	}
	for i := range sd.names {
		h := headers[index[i]]
		if _, spec := sd.place(i); h != nil && spec.ByteOffset < h.DataOffset {
			headers[index[i]] = nil
		}
	}
	headers = slices.DeleteFunc(headers, func(h *gguf.Header) bool { return h == nil })
	part := func(h *gguf.Header) uint64 {
		no, numbered := h.Metadata.Uint(splitNo)
		if !numbered {
			return math.MaxUint64
		}
		return no
	}
	slices.SortStableFunc(headers, func(a, b *gguf.Header) int { return cmp.Compare(part(a), part(b)) })
	return headers, nil
}

// mergeHeaders returns the metadata of all files. If two files differ in a key, the first one decides.
func mergeHeaders(headers []*gguf.Header) gguf.Metadata {
	merged, known := gguf.Metadata{}, map[string]bool{}
	for _, h := range headers {
		for _, e := range h.Metadata {
			if !known[e.Key] {
				known[e.Key] = true
				merged = append(merged, e)
			}
		}
	}
	return merged
}

// entriesOf reads the metadata of a GGUF model again, with the types of the values.
func entriesOf(m *safetensors.Model) (gguf.Metadata, error) {
	headers := make([]*gguf.Header, len(m.Files))
	for i, f := range m.Files {
		var err error
		if headers[i], err = gguf.ReadHeader(f.Source(), f.Header.FileBytes); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return mergeHeaders(headers), nil
}
