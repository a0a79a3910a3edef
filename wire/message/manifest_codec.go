package message

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// MaxRank is the maximum number of dimensions of a tensor.
const MaxRank = 64

// MaxTensors is the maximum number of tensors of a manifest.
const MaxTensors = 1 << 20

const digestBytes = 32

// NewManifest arranges tensors in columns. It borrows its arguments but keeps names, storages and metadata. Either
// every tensor has a digest or none. Input that [Manifest.Decode] would refuse is an [ErrManifest].
func NewManifest(tensors []Tensor, storages []Storage, metadata map[string]string) (*Manifest, error) {
	if len(tensors) > MaxTensors {
		return nil, fmt.Errorf("%w: %d tensors, at most %d are allowed", ErrManifest, len(tensors), MaxTensors)
	}
	var c counts
	for i := range tensors {
		t := &tensors[i]
		if err := t.check(len(storages)); err != nil {
			return nil, fmt.Errorf("%w: tensor %d, %q: %w", ErrManifest, i, t.Name, err)
		}
		if !utf8.ValidString(t.Name) {
			return nil, fmt.Errorf("%w: tensor %d: the name %q is not UTF-8", ErrManifest, i, t.Name)
		}
		c.add(t)
	}
	if c.digests != 0 && c.digests != len(tensors) {
		return nil, fmt.Errorf("%w: %d of %d tensors have a digest", ErrManifest, c.digests, len(tensors))
	}
	if err := checkStorages(storages); err != nil {
		return nil, err
	}
	if err := checkMetadata(metadata); err != nil {
		return nil, err
	}
	m := fillColumns(tensors, c)
	m.Storages, m.Metadata = storages, metadata
	return m, nil
}

// counts holds the sizes of the columns.
type counts struct{ names, dims, strided, strides, digests int }

func (c *counts) add(t *Tensor) {
	c.names += len(t.Name)
	c.dims += len(t.Shape)
	if t.Strides != nil {
		c.strided++
		c.strides += len(t.Strides)
	}
	if t.Digest != nil {
		c.digests++
	}
}

// fillColumns writes validated tensors into columns of known size, all in one allocation.
func fillColumns(tensors []Tensor, c counts) *Manifest {
	n := len(tensors)
	all := make([]byte, 4*n+n+n+8*c.dims+4*n+8*n+4*c.strided+8*c.strides+digestBytes*c.digests)
	column := func(size int) []byte {
		c := all[:size:size]
		all = all[size:]
		return c
	}
	m := &Manifest{
		NameLengths: column(4 * n), DTypes: column(n), Ranks: column(n), Dims: column(8 * c.dims), Storage: column(4 * n),
		Offsets: column(8 * n), Strided: column(4 * c.strided), Strides: column(8 * c.strides), Digests: column(digestBytes * c.digests),
	}
	var text strings.Builder
	text.Grow(c.names)
	// Local copies keep the loop free of write barriers.
	names, dtypes, ranks, dim, storage, offsets := m.NameLengths, m.DTypes, m.Ranks, m.Dims, m.Storage, m.Offsets
	index, steps, sums := m.Strided, m.Strides, m.Digests
	for i := range tensors {
		t := &tensors[i]
		text.WriteString(t.Name)
		binary.LittleEndian.PutUint32(names[4*i:], uint32(len(t.Name)))
		dtypes[i], ranks[i] = t.DType, byte(len(t.Shape))
		binary.LittleEndian.PutUint32(storage[4*i:], t.Storage)
		binary.LittleEndian.PutUint64(offsets[8*i:], uint64(t.ByteOffset))
		dim = putInt64s(dim, t.Shape)
		if t.Strides != nil {
			binary.LittleEndian.PutUint32(index, uint32(i))
			index, steps = index[4:], putInt64s(steps, t.Strides)
		}
		if t.Digest != nil {
			sums = sums[copy(sums, t.Digest):]
		}
	}
	m.Names = text.String()
	return m
}

// Decode returns [Manifest.Rows] as a slice.
func (m *Manifest) Decode() ([]Tensor, error) {
	tensors := []Tensor{}
	err := m.Rows(func(i int, t *Tensor) {
		if i == 0 {
			tensors = make([]Tensor, m.Len()) // after the columns were validated
		}
		tensors[i] = *t
	})
	if err != nil {
		return nil, err
	}
	return tensors, nil
}

// Rows validates the columns and calls row for each tensor with a Tensor that is reused for the next one. Its slices
// share one allocation, and names and digests are parts of m. Rows checks lengths, ranks, indices, signs, and that no
// product of dimensions overflows. Packages that know tensors check data types, unique names and the bounds of
// storages. Errors are [ErrManifest]; rows passed before the error must be discarded.
func (m *Manifest) Rows(row func(i int, t *Tensor)) error {
	dims, strides, err := m.checkColumns()
	if err != nil {
		return err
	}
	numbers := make([]int64, dims+strides)
	readInt64s(numbers[:dims], m.Dims)
	readInt64s(numbers[dims:], m.Strides)
	text, shapes, steps, strided := m.Names, numbers[:dims:dims], numbers[dims:], m.Strided
	var t Tensor
	for i := range m.Len() {
		length, rank := int(binary.LittleEndian.Uint32(m.NameLengths[4*i:])), int(m.Ranks[i])
		t.Name, text = text[:length], text[length:]
		t.DType = m.DTypes[i]
		t.Storage = binary.LittleEndian.Uint32(m.Storage[4*i:])
		t.ByteOffset = int64(binary.LittleEndian.Uint64(m.Offsets[8*i:]))
		t.Shape, shapes = shapes[:rank:rank], shapes[rank:]
		t.Strides = nil
		if len(strided) > 0 && binary.LittleEndian.Uint32(strided) == uint32(i) {
			t.Strides, steps, strided = steps[:rank:rank], steps[rank:], strided[4:]
		}
		if len(m.Digests) > 0 {
			t.Digest = m.Digests[digestBytes*i : digestBytes*(i+1) : digestBytes*(i+1)]
		}
		if err := t.check(len(m.Storages)); err != nil {
			return fmt.Errorf("%w: tensor %d, %q: %w", ErrManifest, i, t.Name, err)
		}
		row(i, &t)
	}
	return nil
}

// checkColumns checks the length of every column before anything is allocated, and returns the number of dimensions and
// strides.
func (m *Manifest) checkColumns() (dims, strides int, err error) {
	n := m.Len()
	if n > MaxTensors {
		return 0, 0, fmt.Errorf("%w: %d tensors, at most %d are allowed", ErrManifest, n, MaxTensors)
	}
	for _, c := range []struct {
		name      string
		got, want int
	}{
		{"name lengths", len(m.NameLengths), 4 * n},
		{"data types", len(m.DTypes), n},
		{"ranks", len(m.Ranks), n},
		{"storage indices", len(m.Storage), 4 * n},
		{"offsets", len(m.Offsets), 8 * n},
		{"strided indices", len(m.Strided), len(m.Strided) / 4 * 4},
	} {
		if err := columnLength(n, c.name, c.got, c.want); err != nil {
			return 0, 0, err
		}
	}
	if err := m.checkNames(); err != nil {
		return 0, 0, err
	}
	if dims, strides, err = m.countDims(); err != nil {
		return 0, 0, err
	}
	if err := columnLength(n, "dimensions", len(m.Dims), 8*dims); err != nil {
		return 0, 0, err
	}
	if err := columnLength(n, "strides", len(m.Strides), 8*strides); err != nil {
		return 0, 0, err
	}
	if len(m.Digests) > 0 {
		if err := columnLength(n, "digests", len(m.Digests), digestBytes*n); err != nil {
			return 0, 0, err
		}
	}
	return dims, strides, checkStorages(m.Storages)
}

func columnLength(tensors int, name string, got, want int) error {
	if got != want {
		return fmt.Errorf("%w: the %s of %d tensors take %d bytes, not %d", ErrManifest, name, tensors, want, got)
	}
	return nil
}

// checkNames checks that the names fill their column and that none begins within a character. The column as a whole is
// valid UTF-8, so each name is too.
func (m *Manifest) checkNames() error {
	at := int64(0)
	for i := range m.Len() {
		if at < int64(len(m.Names)) && !utf8.RuneStart(m.Names[at]) {
			return fmt.Errorf("%w: name %d begins within a character", ErrManifest, i)
		}
		at += int64(binary.LittleEndian.Uint32(m.NameLengths[4*i:]))
		if at > int64(len(m.Names)) {
			break
		}
	}
	if at != int64(len(m.Names)) {
		return fmt.Errorf("%w: the names take %d bytes, not the %d that their lengths add up to", ErrManifest, len(m.Names), at)
	}
	return nil
}

// countDims adds up the ranks of all tensors and of the strided ones, whose indices it checks.
func (m *Manifest) countDims() (dims, strides int, err error) {
	for _, r := range m.Ranks {
		dims += int(r)
	}
	next := int64(0)
	for s := m.Strided; len(s) > 0; s = s[4:] {
		i := int64(binary.LittleEndian.Uint32(s))
		if i < next || i >= int64(m.Len()) {
			return 0, 0, fmt.Errorf("%w: strided tensor %d of %d, where at least %d is due", ErrManifest, i, m.Len(), next)
		}
		next = i + 1
		strides += int(m.Ranks[i])
	}
	return dims, strides, nil
}

// check refuses an invalid row.
func (t *Tensor) check(storages int) error {
	switch {
	case t.DType == 0:
		return fmt.Errorf("no data type")
	case len(t.Shape) > MaxRank:
		return fmt.Errorf("%d dimensions, at most %d are allowed", len(t.Shape), MaxRank)
	case int64(t.Storage) >= int64(storages):
		return fmt.Errorf("storage %d of %d", t.Storage, storages)
	case t.ByteOffset < 0:
		return fmt.Errorf("offset %d", t.ByteOffset)
	case t.Strides != nil && len(t.Strides) != len(t.Shape):
		return fmt.Errorf("%d strides for %d dimensions", len(t.Strides), len(t.Shape))
	case t.Digest != nil && len(t.Digest) != digestBytes:
		return fmt.Errorf("digest of %d bytes", len(t.Digest))
	}
	elements := int64(1)
	for _, d := range t.Shape {
		if d < 0 {
			return fmt.Errorf("dimension %d", d)
		}
		// A dimension of 0 counts as 1: an overflowing product is refused even if the tensor has no elements.
		if d > 1 && elements > math.MaxInt64/d {
			return fmt.Errorf("the dimensions %d multiply beyond 63 bits", t.Shape)
		}
		elements *= max(d, 1)
	}
	return nil
}

func checkStorages(storages []Storage) error {
	if int64(len(storages)) > math.MaxInt32 {
		return fmt.Errorf("%w: %d storages", ErrManifest, len(storages))
	}
	for i, s := range storages {
		if s.Bytes > math.MaxInt64 {
			return fmt.Errorf("%w: storage %d has %d bytes", ErrManifest, i, s.Bytes)
		}
	}
	return nil
}

func checkMetadata(metadata map[string]string) error {
	for k, v := range metadata {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return fmt.Errorf("%w: metadata %q is not UTF-8", ErrManifest, k)
		}
	}
	return nil
}

// putInt64s writes v into b and returns the rest of b.
func putInt64s(b []byte, v []int64) []byte {
	for _, x := range v {
		binary.LittleEndian.PutUint64(b, uint64(x))
		b = b[8:]
	}
	return b
}

// readInt64s fills v from b, which has 8 bytes for each element.
func readInt64s(v []int64, b []byte) {
	for i := range v {
		v[i] = int64(binary.LittleEndian.Uint64(b[8*i:]))
	}
}
