package safetensors

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// shardName matches Transformers' names of shards: model-00001-of-00005.safetensors.
var shardName = regexp.MustCompile(`^(.+)-(\d{1,9})-of-(\d{1,9})\.safetensors$`)

// shardsWithoutIndex refuses a directory in which a name is one shard of several: its files are not separate models.
func shardsWithoutIndex(names []string) error {
	for _, name := range names {
		parts := shardName.FindStringSubmatch(name)
		if parts == nil {
			continue
		}
		total, _ := strconv.Atoi(parts[3]) // at most nine digits
		if total < 2 {
			continue
		}
		have := 0
		for _, other := range names {
			if p := shardName.FindStringSubmatch(other); p != nil && p[1] == parts[1] && p[3] == parts[3] {
				have++
			}
		}
		return fmt.Errorf("%w: %d of the %d shards of %s are here; put %s.safetensors.index.json beside them, which is published with them",
			ErrNoIndex, have, total, quote(parts[1]), parts[1])
	}
	return nil
}

// findShards returns an error that lists all missing shards of the index.
func (m *Model) findShards() error {
	var missing []string
	for _, shard := range m.Index.Shards {
		if _, err := m.disk.Stat(filepath.Join(filepath.Dir(m.Path), shard)); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, quote(shard))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	const shown = 3
	names := strings.Join(missing[:min(shown, len(missing))], ", ")
	if len(missing) > shown {
		names += fmt.Sprintf(" and %d more", len(missing)-shown)
	}
	return fmt.Errorf("%w: %d of the %d that the index names (%s); download them beside it: %w",
		ErrMissingShards, len(missing), len(m.Index.Shards), names, fs.ErrNotExist)
}
