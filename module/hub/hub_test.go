package hub_test

import (
	"encoding/json"
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

// CacheDir and HomeDir find what huggingface_hub finds: testdata/cache.py wrote the expected folders.
func TestCacheDir(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "cache.json"))
	require.NoError(t, err)
	var cases []struct {
		Env         map[string]string
		Cache, Home string
	}
	require.NoError(t, json.Unmarshal(text, &cases))
	require.Greater(t, len(cases), 90)
	for _, c := range cases {
		for _, name := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"} {
			t.Setenv(name, "") // as if it were missing
		}
		for name, value := range c.Env {
			t.Setenv(name, value)
		}
		cache, err := hub.CacheDir()
		require.NoError(t, err)
		require.Equal(t, c.Cache, filepath.Clean(cache), c.Env)
		home, err := hub.HomeDir()
		require.NoError(t, err)
		require.Equal(t, c.Home, filepath.Clean(home), c.Env)
	}
}

func TestParseModel(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]hub.Model{
		"gpt2":                          {Repo: hub.Repo{ID: "gpt2", Revision: "main"}},
		"org/m:model.gguf":              {Repo: hub.Repo{ID: "org/m", Revision: "main"}, File: "model.gguf"},
		"org/m@v1:gguf/Q4/a b:c-1.gguf": {Repo: hub.Repo{ID: "org/m", Revision: "v1"}, File: "gguf/Q4/a b:c-1.gguf"},
		"org/m@refs/pr/1:text_encoder":  {Repo: hub.Repo{ID: "org/m", Revision: "refs/pr/1"}, File: "text_encoder"},
		"org/m@" + commit + ":a/b.gguf": {Repo: hub.Repo{ID: "org/m", Revision: commit}, File: "a/b.gguf"},
		"org/m:..model/...gguf":         {Repo: hub.Repo{ID: "org/m", Revision: "main"}, File: "..model/...gguf"},
	} {
		got, err := hub.ParseModel(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got)
		require.Equal(t, text, got.String())
	}
	for _, text := range []string{
		"org/m:", "org/m:/etc/passwd", "org/m:..", "org/m:../x", "org/m:a/../../x", "org/m:a//b", "org/m:a/", "org/m:.", "org/m:./a", `org/m:a\b`, "org/m:a\x00", ":a", "org/m@:a",
	} {
		_, err := hub.ParseModel(text)
		require.ErrorIs(t, err, hub.ErrName, text)
	}
}

// Each kind of snapshot that cannot be loaded has its reason and its remedy in the error.
func TestPath(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		model string
		files map[string]string // links to blobs of this content; "-" is a blob that is missing, and "+" one that is being downloaded
		want  string            // the path that is found
		err   error
		text  []string
	}{
		"a file":                   {"org/m:a/model.gguf", map[string]string{"a/model.gguf": "x"}, "a/model.gguf", nil, nil},
		"a folder":                 {"org/m:a", map[string]string{"a/model.safetensors": "x", "b/model.safetensors": "-"}, "a", nil, nil},
		"the top folder":           {"org/m", map[string]string{"model.safetensors": "x", "pytorch_model.bin": "-"}, "", nil, nil},
		"a GGUF model":             {"org/m", map[string]string{"m.gguf": "x", "README.md": "x"}, "", nil, nil},
		"only .bin":                {"org/m", map[string]string{"pytorch_model.bin": "x", "config.json": "{}"}, "", hub.ErrIncomplete, []string{"only PyTorch checkpoints (.bin)", "pytorch_model.bin", "refs/pr/1"}},
		"only .bin in a folder":    {"org/m:a", map[string]string{"a/x.pt": "x"}, "", hub.ErrIncomplete, []string{"org/m:a:", "only PyTorch checkpoints (.pt)", "safetensors.torch.save_file"}},
		"only Flax":                {"org/m", map[string]string{"flax_model.msgpack": "x"}, "", hub.ErrIncomplete, []string{"Flax"}},
		"only ONNX":                {"org/m", map[string]string{"model.onnx": "x"}, "", hub.ErrIncomplete, []string{"ONNX"}},
		"a deleted blob":           {"org/m", map[string]string{"model.safetensors": "-"}, "", hub.ErrIncomplete, []string{"model.safetensors is a link to a blob that was deleted", "hf download org/m model.safetensors"}},
		"a deleted blob of FILE":   {"org/m@v1:a/b.gguf", map[string]string{"a/b.gguf": "-"}, "", hub.ErrIncomplete, []string{"a/b.gguf is a link", "hf download org/m a/b.gguf --revision v1"}},
		"a deleted shard":          {"org/m", map[string]string{"model.safetensors.index.json": "{}", "model-1.safetensors": "-"}, "", hub.ErrIncomplete, []string{"model-1.safetensors is a link"}},
		"an unfinished download":   {"org/m", map[string]string{"model.safetensors": "+"}, "", hub.ErrIncomplete, []string{"has not finished", "let the download end"}},
		"no weights yet":           {"org/m", map[string]string{"config.json": "{}", "blobs": "+"}, "", hub.ErrIncomplete, []string{"has not finished"}},
		"no weights":               {"org/m", map[string]string{"config.json": "{}"}, "", hub.ErrIncomplete, []string{"no weights", "hf download org/m"}},
		"an empty snapshot":        {"org/m", map[string]string{}, "", hub.ErrIncomplete, []string{"no weights", "hf download org/m"}},
		"only sub-folders":         {"org/m@v1", map[string]string{"unet/model.safetensors": "x", "vae/model.safetensors": "x", "doc/a.md": "x"}, "", hub.ErrIncomplete, []string{"unet, vae", "such as org/m@v1:unet"}},
		"no such file":             {"org/m:b.gguf", map[string]string{"a.gguf": "x"}, "", hub.ErrIncomplete, []string{"no b.gguf", "the snapshot has a.gguf", "hf download org/m b.gguf"}},
		"no such file in a folder": {"org/m:a/b c.gguf", map[string]string{"a/a.gguf": "x"}, "", hub.ErrIncomplete, []string{"its folder has a.gguf", "hf download org/m 'a/b c.gguf'"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cache := t.TempDir()
			folder := filepath.Join(cache, "models--org--m")
			snapshot := filepath.Join(folder, "snapshots", commit)
			require.NoError(t, os.MkdirAll(snapshot, 0o700))
			for _, ref := range []string{"main", "v1"} {
				write(t, filepath.Join(folder, "refs", ref), commit)
			}
			for file, content := range c.files {
				path := filepath.Join(snapshot, filepath.FromSlash(file))
				blob := filepath.Join(folder, "blobs", strings.ReplaceAll(file, "/", "-"))
				switch content {
				case "-":
				case "+":
					write(t, blob+".1f2e3d4c.incomplete", "")
				default:
					write(t, blob, content)
				}
				if file != "blobs" {
					require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
					require.NoError(t, os.Symlink(blob, path))
				}
			}
			model, err := hub.ParseModel(c.model)
			require.NoError(t, err)
			path, at, err := model.Path(cache)
			if c.err == nil {
				require.NoError(t, err)
				require.Equal(t, commit, at)
				require.Equal(t, filepath.Join(snapshot, filepath.FromSlash(c.want)), path)
				return
			}
			require.ErrorIs(t, err, c.err)
			for _, text := range append(c.text, c.model) {
				require.ErrorContains(t, err, text)
			}
		})
	}
}

// A repository without the revision names those that it has.
func TestPathWithoutRefs(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	folder := filepath.Join(cache, "models--org--m")
	write(t, filepath.Join(folder, "snapshots", commit, "model.safetensors"), "x")
	model, err := hub.ParseModel("org/m")
	require.NoError(t, err)
	_, _, err = model.Path(cache)
	require.ErrorIs(t, err, hub.ErrNotCached)
	for _, text := range []string{"revision main", commit, "hf download org/m", "org/m@REVISION"} {
		require.ErrorContains(t, err, text)
	}
	write(t, filepath.Join(folder, "refs", "pr", "1"), commit)
	write(t, filepath.Join(folder, "refs", "gone"), strings.Repeat("9", 40))
	_, _, err = model.Path(cache)
	require.ErrorContains(t, err, "has pr/1:")
	model.Revision = "gone"
	_, _, err = model.Path(cache)
	require.ErrorIs(t, err, hub.ErrNotCached)
	require.ErrorContains(t, err, "revision gone")
}
