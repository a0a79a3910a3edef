package module_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// sharedFile is an entry of testdata/files/manifest.json. The tests of the Python client use the same files.
type sharedFile struct {
	Path    string
	Accept  bool
	Note    string
	Tensors map[string]struct {
		DType  string
		Shape  []int64
		SHA256 string
	}
	Ties     map[string]string
	Metadata map[string]string
	Warns    []string
}

func sharedFiles(t *testing.T) (dir string, files []sharedFile) {
	t.Helper()
	dir = filepath.Join("testdata", "files")
	text, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	require.NoError(t, err)
	var manifest struct{ Files []sharedFile }
	require.NoError(t, json.Unmarshal(text, &manifest))
	require.Greater(t, len(manifest.Files), 80)
	return dir, manifest.Files
}

// Go accepts and refuses the files of the set as the safetensors package and the rules of the set say, and finds the same
// tensors, ties and metadata.
func TestSharedFiles(t *testing.T) {
	dir, files := sharedFiles(t)
	for _, f := range files {
		t.Run(f.Path, func(t *testing.T) {
			path := filepath.Join(dir, filepath.FromSlash(f.Path))
			var warnings []string
			sd, err := module.Load(context.Background(), openHost(t), path, module.LoadOptions{Warn: func(w string) { warnings = append(warnings, w) }})
			if !f.Accept {
				require.Error(t, err, f.Note)
				require.ErrorContains(t, err, dir)
				return
			}
			require.NoError(t, err, f.Note)
			defer sd.Close()
			require.ElementsMatch(t, append(slices.Collect(maps.Keys(f.Tensors)), slices.Collect(maps.Keys(f.Ties))...), sd.Names())
			for name, want := range f.Tensors {
				x, _ := sd.Get(name)
				dtype, err := safetensors.Name(x.DType())
				require.NoError(t, err)
				require.Equal(t, want.DType, dtype, name)
				require.Equal(t, want.Shape, append([]int64{}, x.Shape()...), name)
				data, err := x.ReadBytes()
				require.NoError(t, err)
				sum := sha256.Sum256(data)
				require.Equal(t, want.SHA256, hex.EncodeToString(sum[:]), name)
			}
			groups := map[string][]string{}
			for name, kept := range f.Ties {
				groups[kept] = append(groups[kept], name)
			}
			aliases := sd.Aliases()
			require.Len(t, aliases, len(groups))
			for _, group := range aliases {
				require.ElementsMatch(t, append(groups[group[0]], group[0]), group)
			}
			if f.Metadata != nil {
				require.Equal(t, f.Metadata, orEmpty(sd.Metadata))
			}
			require.Equal(t, len(f.Warns) == 0, len(warnings) == 0, "%v", warnings)
			for _, name := range f.Warns {
				require.Contains(t, strings.Join(warnings, "\n"), name)
			}
		})
	}
}

// orEmpty returns the map, or an empty one for nil.
func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}
