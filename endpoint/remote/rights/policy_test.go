package rights_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// A policy that another user can write is refused.
func TestReadRefusesFilesOfOthers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(path, []byte("rules: []\n"), 0o600))
	_, err := rights.Read(path)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(path, 0o620))
	_, err = rights.Read(path)
	require.ErrorContains(t, err, "others may write it")
	require.NoError(t, os.Chmod(path, 0o600))
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chown(path, 12345, 12345))
		_, err = rights.Read(path)
		require.ErrorContains(t, err, "belongs to uid 12345")
	}
	_, err = rights.Read(filepath.Dir(path))
	require.ErrorContains(t, err, "not a regular file")
}
