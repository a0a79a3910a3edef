package serve

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/onnx/graph"
	"example.com/onnx/internal/synthetic"
)

// The files that a graph names are made in a new folder only.
func TestEmptyFilesStayInTheirFolder(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for location, ok := range map[string]bool{
		"w": true, "model.safetensors": true, "": false, ".": false, "..": false, "../w": false, "/etc/passwd": false, "a/b": false, "a\x00b": false,
	} {
		parts, err := graph.Split(synthetic.Model{Layers: 1, Width: 32, Seed: 1}.Encode(), graph.Options{Location: location, MinBytes: 4})
		require.NoError(t, err)
		folder, err := emptyFiles(parts.Graph)
		if !ok {
			require.Error(t, err, "%q", location)
			left, err := filepath.Glob(filepath.Join(os.TempDir(), "*"))
			require.NoError(t, err)
			require.Empty(t, left, "%q", location)
			continue
		}
		require.NoError(t, err, "%q", location)
		files, err := os.ReadDir(folder)
		require.NoError(t, err)
		require.Len(t, files, 1)
		require.Equal(t, location, files[0].Name())
		require.NoError(t, os.RemoveAll(folder))
	}
}
