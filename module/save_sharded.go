package module

import (
	"context"
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// DefaultShardBytes is the default of ShardOptions.ShardBytes.
const DefaultShardBytes = 5_000_000_000

// ShardOptions are the options of [SaveSharded]. The zero value is fine.
type ShardOptions struct {
	SaveOptions
	// ShardBytes limits the bytes of tensors in a file; 0 means [DefaultShardBytes]. A larger tensor has a separate
	// file.
	ShardBytes int64
}

// errShardBytes is returned for a negative ShardBytes.
var errShardBytes = errors.New("a file cannot have fewer than 0 bytes of tensors")

// SaveSharded writes the state dict to several safetensors files with an index, as Transformers does, in a directory
// without a model, which is created if needed. Tensors are in the order of the state dict, but tensors that others are
// tied to come first. The index is written last, and after an error, or when ctx ends, the written files are removed:
// see [safetensors.WriteShards]. [Load] reads the directory. Ties and metadata are as in [Save]; the first file records
// the ties. The format is always safetensors. Errors name the path and the tensor.
func SaveSharded(ctx context.Context, dir string, sd *StateDict, opts ShardOptions) error {
	limit := opts.ShardBytes
	if limit == 0 {
		limit = DefaultShardBytes
	}
	if limit < 0 {
		return fmt.Errorf("%s: %w: %d", dir, errShardBytes, limit)
	}
	if opts.Format == FormatGGUF {
		return fmt.Errorf("%s: %w: shards are safetensors files; Save writes one GGUF file", dir, ErrFormat)
	}
	c := sd.contents(opts.SaveOptions)
	var shards []*safetensors.Header
	var total int64
	metadata := c.metadata
	for _, infos := range c.split(sd, limit) {
		h, err := safetensors.NewHeader(infos, metadata)
		if err != nil {
			return fmt.Errorf("%s: %w", dir, c.advise(err))
		}
		shards = append(shards, h)
		total += h.DataBytes()
		metadata = c.untied
	}
	return safetensors.WriteShards(dir, shards, sd.source(ctx, total, opts.Progress))
}

// split distributes the tensors over files of at most limit bytes. There is at least one file.
func (c *contents) split(sd *StateDict, limit int64) [][]safetensors.TensorInfo {
	first := make(map[string]bool, len(c.dropped))
	for _, kept := range c.dropped {
		first[kept] = true
	}
	shards := [][]safetensors.TensorInfo{nil}
	var bytes int64
	for _, tied := range []bool{true, false} {
		for _, info := range c.infos {
			if first[info.Name] != tied {
				continue
			}
			t, _ := sd.Get(info.Name)
			last := len(shards) - 1
			if len(shards[last]) > 0 && t.Bytes() > limit-bytes {
				shards, bytes, last = append(shards, nil), 0, last+1
			}
			shards[last] = append(shards[last], info)
			bytes += min(t.Bytes(), limit)
		}
	}
	return shards
}
