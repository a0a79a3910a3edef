package module

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sharedtensor/sharedtensor/module/gguf"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// OpenModel opens a model of any supported format: a safetensors model as [safetensors.Open] does, or a GGUF file, which
// is recognised by its first bytes. A directory without safetensors files may contain one GGUF model; more are
// [safetensors.ErrAmbiguous]. The metadata of a GGUF model is that of [gguf.Metadata.Texts]. If its metadata says
// that it is part of a split model (NAME-00001-of-00003.gguf), all parts are opened. The caller closes the model. Errors are
// those of safetensors.Open and [gguf.ReadHeader], and [gguf.ErrSplit] if parts are missing or do not belong together.
func OpenModel(path string) (*safetensors.Model, error) { return openModel(safetensors.Files{}, path) }

// OpenModelIn is [OpenModel] for a path below a folder, whose links cannot lead out of the folder, also if they are made
// meanwhile: [safetensors.ErrOutside]. It borrows root until the last use of the model.
func OpenModelIn(root *os.Root, path string) (*safetensors.Model, error) {
	return openModel(safetensors.Files{Root: root}, path)
}

func openModel(disk safetensors.Files, path string) (*safetensors.Model, error) {
	path, err := ggufIn(disk, path)
	if err != nil {
		return nil, err
	}
	if !isGGUF(disk, path) {
		return disk.OpenModel(path)
	}
	files, err := splitFiles(disk, path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s := splits{count: len(files)}
	m, err := disk.OpenForeign(path, files, func(r io.ReaderAt, size int64) (*safetensors.Header, error) {
		h, err := gguf.ReadHeader(r, size)
		if err != nil {
			return nil, err
		}
		return headerOf(h), s.add(h)
	})
	if err != nil {
		return nil, err
	}
	if err := s.check(); err != nil {
		_ = m.Close() // best effort: the files were only read
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// modelOf is [OpenModel] for one file of size bytes that r reads, which is not part of a split model.
func modelOf(r io.ReaderAt, size int64) (*safetensors.Model, error) {
	magic := make([]byte, len(gguf.Magic))
	if n, _ := r.ReadAt(magic, 0); n < len(magic) || string(magic) != gguf.Magic {
		return safetensors.NewModel("safetensors", r, size) // also reports why r cannot be read
	}
	s := splits{count: 1}
	return safetensors.NewForeign("GGUF", r, size, func(r io.ReaderAt, size int64) (*safetensors.Header, error) {
		h, err := gguf.ReadHeader(r, size)
		if err != nil {
			return nil, err
		}
		return headerOf(h), s.add(h)
	})
}

// Keys of the files of a split model, as llama.cpp writes them.
const (
	splitNo      = "split.no"
	splitCount   = "split.count"
	splitTensors = "split.tensors.count"
)

// splits compares the files of a model in order, with the rules of llama.cpp.
type splits struct {
	count    int // files
	next     int
	expected uint64 // tensors of all files according to the first one
	found    uint64
}

// add compares the next file with those before it.
func (s *splits) add(h *gguf.Header) error {
	part := s.next
	s.next++
	s.found += uint64(len(h.Tensors))
	count, split := h.Metadata.Uint(splitCount)
	if s.count == 1 && count <= 1 {
		s.expected = s.found
		return nil
	}
	no, numbered := h.Metadata.Uint(splitNo)
	if !numbered || no != uint64(part) || split && count != uint64(s.count) {
		return fmt.Errorf("%w: the metadata says part %s of %d, and the name part %d of %d; keep the names of the download",
			gguf.ErrSplit, partText(no, numbered), count, part+1, s.count)
	}
	tensors, counted := h.Metadata.Uint(splitTensors)
	switch {
	case part == 0 && !counted:
		return fmt.Errorf("%w: the metadata has no %s", gguf.ErrSplit, splitTensors)
	case part == 0:
		s.expected = tensors
	case counted && tensors != s.expected:
		return fmt.Errorf("%w: it is part of a model with %d tensors, and the first file of one with %d", gguf.ErrSplit, tensors, s.expected)
	}
	return nil
}

func partText(no uint64, numbered bool) string {
	if !numbered {
		return "unknown"
	}
	return strconv.FormatUint(no+1, 10)
}

// check compares the number of tensors after the last file.
func (s *splits) check() error {
	if s.found != s.expected {
		return fmt.Errorf("%w: the files have %d tensors, and the model %d; download all files again", gguf.ErrSplit, s.found, s.expected)
	}
	return nil
}

// ggufIn returns the GGUF model in a directory that contains GGUF files but no safetensors files, otherwise path.
func ggufIn(disk safetensors.Files, path string) (string, error) {
	entries, err := disk.ReadDir(path)
	if err != nil {
		return path, nil // a file, or the error of Open
	}
	var found []string
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasSuffix(name, ".safetensors") || strings.HasSuffix(name, ".safetensors.index.json") {
			return path, nil
		}
		if strings.HasPrefix(name, ".") || !strings.HasSuffix(name, ".gguf") {
			continue
		}
		if match := splitName.FindStringSubmatch(name); match != nil && match[2] != "00001" && slices.ContainsFunc(found, func(first string) bool {
			return strings.HasPrefix(first, match[1]+"-") && strings.HasSuffix(first, "-of-"+match[3]+".gguf")
		}) {
			continue // entries are sorted, so the first part was found
		}
		found = append(found, name)
	}
	switch len(found) {
	case 0:
		return path, nil
	case 1:
		return filepath.Join(path, found[0]), nil
	}
	return "", fmt.Errorf("%s: %w: %s; name one", path, safetensors.ErrAmbiguous, strings.Join(found[:min(len(found), maxNamed)], ", "))
}

// maxNamed is the maximum number of files in an error.
const maxNamed = 8

// isGGUF reports whether path is a regular file that begins like a GGUF file. Other paths are left to safetensors.Open.
func isGGUF(disk safetensors.Files, path string) bool {
	f, _, err := disk.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	magic := make([]byte, len(gguf.Magic))
	_, err = io.ReadFull(f, magic)
	return err == nil && string(magic) == gguf.Magic
}

var splitName = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.gguf$`)

// maxSplits is the maximum number of files of a split model.
const maxSplits = 1000

// splitFiles returns the files of the model that path is a part of, in order: path alone if its name or its metadata is not
// that of a part.
func splitFiles(disk safetensors.Files, path string) ([]string, error) {
	match := splitName.FindStringSubmatch(filepath.Base(path))
	if match == nil {
		return []string{path}, nil
	}
	count, _ := strconv.Atoi(match[3]) // five digits
	said, err := splitCountOf(disk, path)
	switch {
	case err != nil:
		return nil, err
	case said <= 1: // as llama.cpp, which reads the other files only if the metadata requires it
		return []string{path}, nil
	case said > maxSplits:
		return nil, fmt.Errorf("%w: %d parts; the limit is %d", gguf.ErrSplit, said, maxSplits)
	case said != uint64(count):
		return nil, fmt.Errorf("%w: the metadata says %d parts, and the name %d; keep the names of the download", gguf.ErrSplit, said, count)
	}
	files := make([]string, count)
	for i := range files {
		files[i] = filepath.Join(filepath.Dir(path), fmt.Sprintf("%s-%05d-of-%05d.gguf", match[1], i+1, count))
	}
	return files, nil
}

// splitCountOf reads the number of parts in the metadata of a file; 0 if there is none.
func splitCountOf(disk safetensors.Files, path string) (uint64, error) {
	f, info, err := disk.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	h, err := gguf.ReadHeader(f, info.Size())
	if err != nil {
		return 0, err
	}
	count, _ := h.Metadata.Uint(splitCount)
	return count, nil
}

// headerOf describes a GGUF file in terms of safetensors.
func headerOf(h *gguf.Header) *safetensors.Header {
	s := &safetensors.Header{Metadata: h.Metadata.Texts(), DataOffset: h.DataOffset, FileBytes: h.FileBytes}
	for _, t := range h.Tensors {
		s.Tensors = append(s.Tensors, safetensors.TensorInfo{
			Name: t.Name, DType: t.DType, Shape: t.Shape, Begin: t.Offset, End: t.Offset + t.Bytes(),
		})
	}
	slices.SortStableFunc(s.Tensors, func(a, b safetensors.TensorInfo) int { return cmp.Compare(a.Begin, b.Begin) })
	return s
}
