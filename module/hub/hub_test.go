package hub_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/module/hub"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func TestParseRepo(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]hub.Repo{
		"gpt2":                    {ID: "gpt2", Revision: "main"},
		"org/model-1.5_b":         {ID: "org/model-1.5_b", Revision: "main"},
		"org/model@v1.0":          {ID: "org/model", Revision: "v1.0"},
		"org/model@refs/pr/1":     {ID: "org/model", Revision: "refs/pr/1"},
		"org/model@" + commit:     {ID: "org/model", Revision: commit},
		"org/model@feature/a_b.c": {ID: "org/model", Revision: "feature/a_b.c"},
	} {
		got, err := hub.ParseRepo(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got)
		require.Equal(t, strings.HasSuffix(text, commit), got.Pinned())
	}
	for _, text := range []string{
		"", "/", "a/", "/a", "a/b/c", "../b", "a/..", "a--b/c", "a/b@", "a/b@../../c", "a/b@/x", "a/b@a//b", "a b", "a/b@x y", ".a/b", "a\x00/b",
		`a\b`, "a/b?c", strings.Repeat("a", 200),
	} {
		_, err := hub.ParseRepo(text)
		require.ErrorIs(t, err, hub.ErrName, text)
	}
}

func TestSnapshot(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	repo, err := hub.ParseRepo("org/model")
	require.NoError(t, err)
	_, _, err = repo.Snapshot("")
	require.ErrorIs(t, err, hub.ErrNotCached)
	require.ErrorContains(t, err, "hf download org/model")

	folder := filepath.Join(cache, "models--org--model")
	write(t, filepath.Join(folder, "refs", "main"), commit+"\n")
	_, _, err = repo.Snapshot("")
	require.ErrorIs(t, err, hub.ErrNotCached, "a ref without its snapshot")
	write(t, filepath.Join(folder, "snapshots", commit, "model.safetensors"), "bytes")
	dir, at, err := repo.Snapshot("")
	require.NoError(t, err)
	require.Equal(t, commit, at)
	require.Equal(t, filepath.Join(folder, "snapshots", commit), dir)
	repo.Revision = commit
	pinned, _, err := repo.Snapshot(cache)
	require.NoError(t, err)
	require.Equal(t, dir, pinned)
	repo.Revision = "v2"
	_, _, err = repo.Snapshot("")
	require.ErrorContains(t, err, "hf download org/model --revision v2")

	write(t, filepath.Join(folder, "refs", "bad"), "../../../etc")
	repo.Revision = "bad"
	_, _, err = repo.Snapshot("")
	require.ErrorIs(t, err, hub.ErrNotCached)
	require.ErrorContains(t, err, "names no commit")

	digest := strings.Repeat("ab", 32)
	write(t, filepath.Join(folder, "blobs", digest), "bytes")
	path, found := repo.Blob("", digest, 5)
	require.True(t, found)
	require.Equal(t, filepath.Join(folder, "blobs", digest), path)
	for etag, bytes := range map[string]int64{digest: 6, "../blobs/" + digest: 5, strings.Repeat("cd", 32): 5, "": 0} {
		_, found = repo.Blob("", etag, bytes)
		require.False(t, found, etag)
	}
}

func TestCacheDir(t *testing.T) {
	for _, name := range []string{"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"} {
		t.Setenv(name, "")
	}
	home, err := os.UserHomeDir()
	require.NoError(t, err)
	for _, c := range []struct{ name, value, want string }{
		{"HOME", home, filepath.Join(home, ".cache", "huggingface", "hub")},
		{"XDG_CACHE_HOME", "x", filepath.Join("x", "huggingface", "hub")},
		{"HF_HOME", "h", filepath.Join("h", "hub")},
		{"HF_HUB_CACHE", "c", "c"},
	} {
		t.Setenv(c.name, c.value)
		dir, err := hub.CacheDir()
		require.NoError(t, err)
		require.Equal(t, c.want, dir)
	}
}
