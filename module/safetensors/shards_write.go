package safetensors

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Encode returns the text of the index, which [ParseIndex] parses. A negative TotalSize is omitted. Errors are
// [ErrShardName], and [ErrNotInShard] for an entry with an invalid shard.
func (x *Index) Encode() ([]byte, error) {
	type metadata struct {
		TotalSize int64 `json:"total_size"`
	}
	var out struct {
		Metadata  *metadata         `json:"metadata,omitempty"`
		WeightMap map[string]string `json:"weight_map"`
	}
	if x.TotalSize >= 0 {
		out.Metadata = &metadata{x.TotalSize}
	}
	out.WeightMap = make(map[string]string, len(x.Tensors))
	for _, t := range x.Tensors {
		if t.Shard < 0 || t.Shard >= len(x.Shards) {
			return nil, fmt.Errorf("tensor %s: %w: there is no shard %d", quote(t.Name), ErrNotInShard, t.Shard)
		}
		if name := x.Shards[t.Shard]; !plainName(name) {
			return nil, fmt.Errorf("%w: %s", ErrShardName, quote(name))
		}
		out.WeightMap[t.Name] = x.Shards[t.Shard]
	}
	text, err := json.MarshalIndent(out, "", "  ")
	return append(text, '\n'), err
}

// WriteShards writes a model of several files, one for each header, into a directory without a model, which is created
// if needed: model-00001-of-00003.safetensors and so on, each as [WriteFile] does, and then
// model.safetensors.index.json. The index is written last, so it always describes a complete model. After an error the
// written files are removed. A directory with a model or an index is [fs.ErrExist], a tensor in two headers
// [ErrDuplicateName]; errors name the path.
func WriteShards(dir string, shards []*Header, source Source) (err error) {
	index, err := newIndex(shards)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	text, err := index.Encode()
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	var made []string
	defer func() {
		for i := len(made) - 1; err != nil && i >= 0; i-- {
			_ = os.Remove(made[i]) // best effort: err is returned
		}
	}()
	switch err := os.Mkdir(dir, 0o777); {
	case err == nil:
		made = append(made, dir)
	case !errors.Is(err, fs.ErrExist):
		return err
	}
	for _, name := range append([]string{fileName, indexName}, index.Shards...) {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return fmt.Errorf("%s: %w: it holds a model already, name another directory", filepath.Join(dir, name), fs.ErrExist)
		}
	}
	for i, h := range shards {
		path := filepath.Join(dir, index.Shards[i])
		if err := WriteFile(path, h, source); err != nil {
			return err
		}
		made = append(made, path)
	}
	path := filepath.Join(dir, indexName)
	err = replace(path, 0o666, false, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// newIndex returns the index of a model with these files.
func newIndex(shards []*Header) (*Index, error) {
	x := &Index{}
	seen := map[string]struct{}{}
	for i, h := range shards {
		x.Shards = append(x.Shards, fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards)))
		x.TotalSize += h.DataBytes()
		for _, t := range h.Tensors {
			if _, twice := seen[t.Name]; twice {
				return nil, fmt.Errorf("%w: %s", ErrDuplicateName, quote(t.Name))
			}
			seen[t.Name] = struct{}{}
			x.Tensors = append(x.Tensors, IndexEntry{Name: t.Name, Shard: i})
		}
	}
	return x, nil
}
