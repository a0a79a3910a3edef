// Package safetensors reads and writes the safetensors file format, for one file and for models sharded over several.
//
// A file is an 8-byte little-endian length, a JSON header of that length, and the tensors' bytes. The header begins
// with '{' and may be padded with spaces at its end. It maps each tensor's name to its dtype, its shape and the
// half-open range of its bytes, counted from the end of the header. The key __metadata__ maps strings to strings.
// Elements are little-endian and row-major. The README of github.com/huggingface/safetensors describes the format.
//
// A [Header] is a pure value: [ReadHeader] reads one from a file, [NewHeader] builds one from a list of tensors, and
// both apply the same rules. The tensors cover the data section without holes or overlaps, the last one ends at the end
// of the file, names are unique, and shape times dtype is the length of each range. Each rule has its own error.
//
// Surprises: the reader is stricter than most. It refuses duplicate names (a JSON library would keep the last), headers
// that begin with white space, unknown keys, and bytes after the last tensor, so a file contains only what its header
// describes.
package safetensors

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	pathpkg "path"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// fileName and indexName are Transformers' names for the only file of a model, and for the index of shards.
	fileName  = "model.safetensors"
	indexName = "model.safetensors.index.json"
)

// Model is a model on disk: one file, or several with an index. It keeps the files open and does not read tensors.
type Model struct {
	// Path is the file or index that was opened.
	Path string
	// Files are the model's files, sorted by name if there is an index.
	Files []*File
	// Tensors holds the tensors of all files, or the tensors that the index places: in the order of Files, and within a file by
	// place.
	Tensors []ModelTensor
	// Metadata is the __metadata__ of all files; if two files differ in a key, the first file's value.
	Metadata map[string]string
	// Index is the index, nil for a model of one file.
	Index *Index
	// Skipped holds the tensors that files contain and the index does not place there: names that it does not list, and
	// copies of tensors that it places in another file. They are not in Tensors. See [Model.Warnings].
	Skipped []ModelTensor
	// Ties holds the names that share a stored tensor's bytes, sorted by name, as recorded in the metadata under
	// [TiedKey].
	Ties []Tie
	// Foreign reports whether the files have another format, see [Files.OpenForeign].
	Foreign bool

	disk      Files
	byName    map[string]int
	tied      map[string]string
	originals []original
}

// ModelTensor is a tensor of a model.
type ModelTensor struct {
	TensorInfo
	// File is an index of Model.Files.
	File int
}

// File is one open file of a model.
type File struct {
	// Path is the path or name of the file.
	Path string
	// Header is the file's header.
	Header *Header

	source io.ReaderAt
	f      *os.File // nil for a reader owned by the caller
}

// Source returns the reader of the file, borrowed: an [os.File] if the model was opened by a path.
func (f *File) Source() io.ReaderAt { return f.source }

// NewModel is [Open] for one file of size bytes that r reads, such as a [bytes.Reader]. It borrows r until the last use
// of the model. path is used in errors. It returns the errors of [ReadHeader], and [ErrTies].
func NewModel(path string, r io.ReaderAt, size int64) (*Model, error) {
	m := &Model{Path: path}
	m.recordReader(path, r)
	h, err := ReadHeader(r, size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	m.Files = []*File{{Path: path, Header: h, source: r}}
	if err := m.complete(); err != nil {
		return nil, err
	}
	return m, nil
}

// Shard is a file of a sharded model, for [NewShards].
type Shard struct {
	// Path is the file's name in errors; its last element is its name in the index.
	Path string
	// Source reads the file until the last use of the model. Borrowed.
	Source io.ReaderAt
	// Bytes is its length.
	Bytes int64
}

// NewShards is [Open] for files behind readers, such as objects of a store. index maps tensors to files, and shards are
// its files in order; with a nil index, shards are the whole model. path is used in errors. It returns the errors of
// Open about contents.
func NewShards(path string, index *Index, shards []Shard) (*Model, error) {
	m := &Model{Path: path, Index: index}
	if index != nil && !slices.EqualFunc(index.Shards, shards, func(name string, s Shard) bool { return name == pathpkg.Base(filepath.ToSlash(s.Path)) }) {
		return nil, fmt.Errorf("%s: %w: the index names %d, and %d are given", path, ErrMissingShards, len(index.Shards), len(shards))
	}
	for _, s := range shards {
		m.recordReader(s.Path, s.Source)
		h, err := ReadHeader(s.Source, s.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Path, err)
		}
		m.Files = append(m.Files, &File{Path: s.Path, Header: h, source: s.Source})
	}
	if err := m.complete(); err != nil {
		return nil, err
	}
	return m, nil
}

// complete combines the files into one model after their headers were read.
func (m *Model) complete() error {
	if err := m.merge(); err != nil {
		return err
	}
	if m.Index != nil {
		if err := m.checkIndex(); err != nil {
			return err
		}
	}
	return m.tie()
}

// Open opens a model: a safetensors file, an index (a name that ends in .json), or a directory with one of the two. If
// a directory has model.safetensors and an index, the former is used, as in Transformers. All headers are read,
// validated and compared with the index, which decides which tensors belong to the model: others are in Model.Skipped. The
// caller closes the model. Errors name the file and the tensor; they are the errors of [ReadHeader] and [ParseIndex],
// [ErrNoModel], [ErrAmbiguous], [ErrNoIndex], [ErrMissingShards], [ErrNotRegular], [ErrNotInShard], [ErrTies] and
// [ErrDuplicateName].
func Open(path string) (*Model, error) { return Files{}.OpenModel(path) }

// OpenModel is [Open] for these files. It also returns [ErrOutside].
func (f Files) OpenModel(path string) (*Model, error) {
	file, err := f.resolve(path)
	if err != nil {
		return nil, err
	}
	m := &Model{Path: file, disk: f}
	if strings.HasSuffix(file, ".json") {
		err = m.openShards()
	} else {
		err = m.openFile(file, ReadHeader)
	}
	if err == nil {
		err = m.complete()
	}
	if err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// OpenForeign opens a model in files of another format. readHeader describes the tensors of a file of size bytes in terms
// of this package; it may permit holes and data types that safetensors lacks. path is used in errors. The caller closes
// the model. Ties are those that the metadata records, as in [Open]. Errors are those of readHeader, wrapped with the
// file, [ErrNotRegular], [ErrDuplicateName], [ErrTies] and [ErrOutside].
func (f Files) OpenForeign(path string, files []string, readHeader func(r io.ReaderAt, size int64) (*Header, error)) (*Model, error) {
	m := &Model{Path: path, Foreign: true, disk: f}
	for _, file := range files {
		if err := m.openFile(file, readHeader); err != nil {
			m.Close()
			return nil, err
		}
	}
	if err := m.complete(); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// NewForeign is [Files.OpenForeign] for one file of size bytes that r reads. It borrows r until the last use of the model.
func NewForeign(path string, r io.ReaderAt, size int64, readHeader func(r io.ReaderAt, size int64) (*Header, error)) (*Model, error) {
	m := &Model{Path: path, Foreign: true}
	m.recordReader(path, r)
	h, err := readHeader(r, size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	m.Files = []*File{{Path: path, Header: h, source: r}}
	if err := m.complete(); err != nil {
		return nil, err
	}
	return m, nil
}

// resolve returns the file for a path.
func (f Files) resolve(path string) (string, error) {
	info, err := f.Stat(path)
	if err != nil || !info.IsDir() {
		return path, err
	}
	for _, name := range [...]string{fileName, indexName} {
		file := filepath.Join(path, name)
		if _, err := f.Stat(file); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return file, err
		}
	}
	entries, err := f.ReadDir(path)
	if err != nil {
		return "", err
	}
	// An index names all of its shards, so files beside it are not models.
	for _, suffix := range [...]string{".safetensors.index.json", ".safetensors"} {
		var found []string
		for _, entry := range entries {
			if strings.HasSuffix(entry.Name(), suffix) && !strings.HasPrefix(entry.Name(), ".") {
				found = append(found, entry.Name())
			}
		}
		if err := shardsWithoutIndex(found); err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		switch {
		case len(found) == 1:
			return filepath.Join(path, found[0]), nil
		case len(found) > 1:
			return "", fmt.Errorf("%s: %w: %s and %s; name one", path, ErrAmbiguous, found[0], found[1])
		}
	}
	if err := f.foreignIn(path, entries); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return "", fmt.Errorf("%s: %w", path, ErrNoModel)
}

// openFile opens one file of the model and reads its header.
func (m *Model) openFile(path string, readHeader func(r io.ReaderAt, size int64) (*Header, error)) error {
	f, info, err := m.disk.Open(path)
	if err != nil {
		return err
	}
	m.record(path, info, f)
	h, err := readHeader(f, info.Size())
	if err != nil {
		f.Close()
		return fmt.Errorf("%s: %w", path, err)
	}
	m.Files = append(m.Files, &File{Path: path, Header: h, source: f, f: f})
	return nil
}

// openShards reads the index at m.Path and opens the files that it names.
func (m *Model) openShards() error {
	f, info, err := m.disk.Open(m.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	m.record(m.Path, info, f)
	if m.Index, err = readIndex(f, info.Size()); err != nil {
		return fmt.Errorf("%s: %w", m.Path, err)
	}
	if err := m.findShards(); err != nil {
		return fmt.Errorf("%s: %w", m.Path, err)
	}
	for _, shard := range m.Index.Shards {
		if err := m.openFile(filepath.Join(filepath.Dir(m.Path), shard), ReadHeader); err != nil {
			return err
		}
	}
	return nil
}

// merge combines the tensors of all files into one list.
func (m *Model) merge() error {
	count, bytes := 0, int64(0)
	for _, f := range m.Files {
		count += len(f.Header.Tensors)
		// Sparse files can claim any size.
		if bytes += f.Header.DataBytes(); bytes < 0 {
			return fmt.Errorf("%s: %w: the files have too many bytes in total", m.Path, ErrOverflow)
		}
	}
	m.Tensors = make([]ModelTensor, 0, count)
	m.byName = make(map[string]int, count)
	for i, f := range m.Files {
		for _, t := range f.Header.Tensors {
			if m.Index != nil && m.Index.shard(t.Name) != i {
				m.Skipped = append(m.Skipped, ModelTensor{TensorInfo: t, File: i})
				continue
			}
			if other, twice := m.byName[t.Name]; twice {
				return fmt.Errorf("%s: %w: %s is in %s too", f.Path, ErrDuplicateName, quote(t.Name),
					filepath.Base(m.Files[m.Tensors[other].File].Path))
			}
			m.byName[t.Name] = len(m.Tensors)
			m.Tensors = append(m.Tensors, ModelTensor{TensorInfo: t, File: i})
		}
		for key, value := range f.Header.Metadata {
			if m.Metadata == nil {
				m.Metadata = map[string]string{}
			}
			if _, known := m.Metadata[key]; !known {
				m.Metadata[key] = value
			}
		}
	}
	return nil
}

// checkIndex refuses an index that places a tensor in a file without it.
func (m *Model) checkIndex() error {
	if len(m.Index.Tensors) == len(m.Tensors) { // names are unique in both, and merge compared the files
		return nil
	}
	for _, entry := range m.Index.Tensors {
		if _, found := m.byName[entry.Name]; !found {
			return fmt.Errorf("%s: tensor %s: %w: %s", m.Path, quote(entry.Name), ErrNotInShard, m.Index.Shards[entry.Shard])
		}
	}
	return nil
}

// warnedNames is the maximum number of names in a warning.
const warnedNames = 8

// Warnings returns one sentence for each file with tensors that the index does not place there. It names them.
func (m *Model) Warnings() []string {
	var warnings []string
	for rest := m.Skipped; len(rest) > 0; {
		file, count := rest[0].File, 1
		for count < len(rest) && rest[count].File == file {
			count++
		}
		var names []string
		for _, t := range rest[:min(count, warnedNames)] {
			name := quote(t.Name)
			if shard := m.Index.shard(t.Name); shard >= 0 {
				name += " (which is read from " + m.Index.Shards[shard] + ")"
			}
			names = append(names, name)
		}
		if count > warnedNames {
			names = append(names, fmt.Sprintf("%d more", count-warnedNames))
		}
		warnings = append(warnings, fmt.Sprintf("%s: skipped %d tensors that %s does not place in this file: %s",
			m.Files[file].Path, count, filepath.Base(m.Path), strings.Join(names, ", ")))
		rest = rest[count:]
	}
	return warnings
}

// Lookup returns a tensor by name. For a tied name it returns the stored tensor, with the stored name.
func (m *Model) Lookup(name string) (ModelTensor, bool) {
	if kept, tied := m.tied[name]; tied {
		name = kept
	}
	i, found := m.byName[name]
	if !found {
		return ModelTensor{}, false
	}
	return m.Tensors[i], true
}

// Bytes returns the length of all files without headers and skipped tensors.
func (m *Model) Bytes() int64 {
	var sum int64
	for _, f := range m.Files {
		sum += f.Header.DataBytes()
	}
	for _, t := range m.Skipped {
		sum -= t.Bytes()
	}
	return sum
}

// Reader reads the bytes of t, an element of m.Tensors, while the model is open.
func (m *Model) Reader(t ModelTensor) *io.SectionReader {
	f := m.Files[t.File]
	return io.NewSectionReader(f.source, f.Header.DataOffset+t.Begin, t.Bytes())
}

// Close closes the files. Headers and lists of tensors remain usable. A second Close returns nil.
func (m *Model) Close() error {
	var first error
	for _, f := range m.Files {
		if f.f == nil {
			continue
		}
		if err := f.f.Close(); err != nil && first == nil {
			first = err
		}
		f.f = nil
	}
	return first
}
