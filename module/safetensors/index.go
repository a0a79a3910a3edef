package safetensors

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// indexDepth limits the nesting of skipped values in an index; the index itself uses two levels.
const indexDepth = 32

// Index maps the tensors of a sharded model to files: the content of model.safetensors.index.json.
type Index struct {
	// Shards holds the files' names, sorted and unique. They are plain names in the directory of the index.
	Shards []string
	// Tensors holds all tensors, sorted by name.
	Tensors []IndexEntry
	// TotalSize is metadata.total_size, which should be the length of all tensors in bytes, or -1 if it is missing or not a
	// number. It may be written as a string. It is not compared with the shards, because tools differ over tied tensors.
	TotalSize int64
}

// IndexEntry places one tensor.
type IndexEntry struct {
	// Name is the tensor's name.
	Name string
	// Shard is an index of Index.Shards.
	Shard int
}

// ParseIndex parses an index. weight_map must map unique strings to plain file names; a shard with a path is
// [ErrShardName]. Keys besides weight_map and metadata are skipped.
func ParseIndex(text []byte) (*Index, error) {
	if len(text) > MaxHeaderBytes {
		return nil, fmt.Errorf("%w: %d bytes; the limit is %d", ErrIndexTooLarge, len(text), MaxHeaderBytes)
	}
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("index: %w", ErrUTF8)
	}
	p := indexParser{
		scanner: scanner{text: string(text), maxDepth: indexDepth, syntax: ErrIndexJSON},
		index:   &Index{TotalSize: -1},
		shards:  map[string]int{},
	}
	if err := p.unique(p.member); err != nil {
		return nil, fmt.Errorf("index: %w", err)
	}
	if err := p.end(); err != nil {
		return nil, fmt.Errorf("index: %w", err)
	}
	if !p.mapped {
		return nil, fmt.Errorf("index: %w: weight_map", ErrMissingKey)
	}
	p.sort()
	return p.index, nil
}

type indexParser struct {
	scanner
	index *Index
	// shards numbers the files in order of occurrence.
	shards map[string]int
	mapped bool
}

// unique iterates over an object with unique keys.
func (p *indexParser) unique(member func(key string) error) error {
	seen := map[string]struct{}{}
	return p.object(func(key string) error {
		if _, twice := seen[key]; twice {
			return fmt.Errorf("%w: %s", ErrDuplicateKey, quote(key))
		}
		seen[key] = struct{}{}
		return member(key)
	})
}

func (p *indexParser) member(key string) error {
	switch key {
	case "weight_map":
		p.mapped = true
		return p.unique(p.place)
	case "metadata":
		return p.unique(p.claim)
	}
	return p.skip()
}

// place parses one entry of weight_map.
func (p *indexParser) place(name string) error {
	shard, err := p.string()
	if err == nil && !plainName(shard) {
		err = fmt.Errorf("%w: %s", ErrShardName, quote(shard))
	}
	if err != nil {
		return fmt.Errorf("tensor %s: %w", quote(name), err)
	}
	number, known := p.shards[shard]
	if !known {
		number = len(p.index.Shards)
		p.shards[shard] = number
		p.index.Shards = append(p.index.Shards, shard)
	}
	p.index.Tensors = append(p.index.Tensors, IndexEntry{Name: name, Shard: number})
	return nil
}

// plainName reports whether a name stays in its directory on every system.
func plainName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\\:\x00")
}

// claim parses one entry of metadata.
func (p *indexParser) claim(key string) error {
	if key != "total_size" {
		return p.skip()
	}
	begin := p.pos
	if err := p.skip(); err != nil {
		return err
	}
	p.index.TotalSize = totalSize(p.text[begin:p.pos])
	return nil
}

// totalSize parses the value of total_size: a number, or a number as a string. Some tools write it as 1.0e9. Other values
// count as missing, because the size is not used to read the model.
func totalSize(value string) int64 {
	number := strings.Trim(strings.TrimSpace(value), `"`)
	if exact, err := strconv.ParseInt(number, 10, 64); err == nil {
		return max(exact, -1)
	}
	if size, err := strconv.ParseFloat(number, 64); err == nil && size >= 0 && size < math.MaxInt64 && size == math.Trunc(size) {
		return int64(size)
	}
	return -1
}

// shard returns the file in which the index places a tensor, or -1.
func (x *Index) shard(name string) int {
	i, listed := slices.BinarySearchFunc(x.Tensors, name, func(e IndexEntry, name string) int { return strings.Compare(e.Name, name) })
	if !listed {
		return -1
	}
	return x.Tensors[i].Shard
}

// sort sorts shards and tensors by name.
func (p *indexParser) sort() {
	x := p.index
	asRead := slices.Clone(x.Shards)
	slices.Sort(x.Shards)
	for i, shard := range x.Shards {
		p.shards[shard] = i
	}
	for i := range x.Tensors {
		x.Tensors[i].Shard = p.shards[asRead[x.Tensors[i].Shard]]
	}
	slices.SortFunc(x.Tensors, func(a, b IndexEntry) int { return strings.Compare(a.Name, b.Name) })
}

// readIndex reads a whole index file of size bytes.
func readIndex(r io.Reader, size int64) (*Index, error) {
	if size > MaxHeaderBytes {
		return nil, fmt.Errorf("%w: %d bytes; the limit is %d", ErrIndexTooLarge, size, MaxHeaderBytes)
	}
	text, err := io.ReadAll(io.LimitReader(r, MaxHeaderBytes+1))
	if err != nil {
		return nil, err
	}
	index, err := ParseIndex(text)
	if err != nil && !bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("{")) {
		if format, advice := foreign(text[:min(len(text), sniffBytes)]); format != "" {
			return nil, &FormatError{Format: format, Advice: advice, Expected: "an index", Err: err}
		}
	}
	return index, err
}
