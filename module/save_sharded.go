package module

import (
	"context"
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// DefaultShardBytes is how many bytes of tensors a file of [SaveSharded] has at most, unless the options say otherwise.
const DefaultShardBytes = 5_000_000_000

// ShardOptions are the options of [SaveSharded]. The zero value is fine.
type ShardOptions struct {
	SaveOptions
	// ShardBytes is how many bytes of tensors a file has at most; 0 stands for [DefaultShardBytes]. A larger tensor has
	// a file of its own.
	ShardBytes int64
}

// errShardBytes is an option that makes no sense.
var errShardBytes = errors.New("a file cannot have fewer than 0 bytes of tensors")

// SaveSharded writes the state dict to several safetensors files with an index, as Transformers does, in a directory
// that holds no model yet and is made where it is not there. Tensors are in the order of the state dict, but those that
// others are tied to come first. The index is written last, and on any error, and when ctx ends, what was written is
// removed: see [safetensors.WriteShards]. [Load] reads the directory. Ties and metadata are as with [Save]; the ties
// are recorded in the first file. Errors name the path and the tensor.
func SaveSharded(ctx context.Context, dir string, sd *StateDict, opts ShardOptions) error {
	limit := opts.ShardBytes
	if limit == 0 {
		limit = DefaultShardBytes
	}
	if limit < 0 {
		return fmt.Errorf("%s: %w: %d", dir, errShardBytes, limit)
	}
	c := sd.contents(opts.SaveOptions)
	var shards []*safetensors.Header
	var total int64
	metadata := c.metadata
	for _, infos := range c.split(sd, limit) {
		h, err := safetensors.NewHeader(infos, metadata)
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		shards = append(shards, h)
		total += h.DataBytes()
		metadata = c.untied
	}
	return safetensors.WriteShards(dir, shards, sd.source(ctx, total, opts.Progress))
}

// split deals the tensors out to files of at most limit bytes of them. There is at least one file.
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
