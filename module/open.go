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

	"github.com/sharedtensor/sharedtensor/module/gguf"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// OpenModel opens a model of any supported format: a safetensors model as [safetensors.Open] does, or a GGUF file, which
// is recognised by its first bytes. The metadata of a GGUF model is that of [gguf.Metadata.Texts]. If the file is part
// of a split model (NAME-00001-of-00003.gguf), all parts are opened. The caller closes the model. Errors are those of
// safetensors.Open and [gguf.ReadHeader], and [gguf.ErrSplit].
func OpenModel(path string) (*safetensors.Model, error) {
	if !isGGUF(path) {
		return safetensors.Open(path)
	}
	files, err := splitFiles(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	next := 0
	return safetensors.OpenForeign(path, files, func(r io.ReaderAt, size int64) (*safetensors.Header, error) {
		h, err := gguf.ReadHeader(r, size)
		if err != nil {
			return nil, err
		}
		part, _ := h.Metadata.Uint("split.no")
		count, split := h.Metadata.Uint("split.count")
		if split && count > 1 && (int(part) != next || int(count) != len(files)) {
			return nil, fmt.Errorf("%w: the metadata says part %d of %d, and the name part %d of %d; keep the names of the download",
				gguf.ErrSplit, part+1, count, next+1, len(files))
		}
		next++
		return headerOf(h), nil
	})
}

// isGGUF reports whether path is a regular file that begins like a GGUF file. Other paths are left to safetensors.Open.
func isGGUF(path string) bool {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	f, err := os.Open(path)
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

// splitFiles returns the files of the model that path is a part of, in order: path alone if its name is not that of a part.
func splitFiles(path string) ([]string, error) {
	match := splitName.FindStringSubmatch(filepath.Base(path))
	if match == nil {
		return []string{path}, nil
	}
	count, _ := strconv.Atoi(match[3]) // five digits
	if count == 0 || count > maxSplits {
		return nil, fmt.Errorf("%w: %d parts; the limit is %d", gguf.ErrSplit, count, maxSplits)
	}
	files := make([]string, count)
	for i := range files {
		files[i] = filepath.Join(filepath.Dir(path), fmt.Sprintf("%s-%05d-of-%05d.gguf", match[1], i+1, count))
	}
	return files, nil
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
