package command

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
)

// attach attaches a model in this process, which is not the owner's process.
func attach(t testing.TB, socket, name string) *endpoint.Handle {
	t.Helper()
	dev, err := cli.OpenHost()
	require.NoError(t, err)
	client, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}})
	require.NoError(t, err)
	h, err := client.Acquire(context.Background(), name, endpoint.AcquireOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, h.Close())
		require.NoError(t, client.Close())
		require.NoError(t, dev.Close())
	})
	return h
}

// handleDigests computes the digests of an attached model from its mapped memory.
func handleDigests(t testing.TB, h *endpoint.Handle) map[string]module.Digest {
	t.Helper()
	d, err := module.Digests(context.Background(), h.StateDict(), 0)
	require.NoError(t, err)
	return d
}

func TestServeDrains(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("m.safetensors", 1)
	owner := p.start(p.command("serve", "m="+path, "--grace", "5s"))
	require.Regexp(t, `^serving 1 model, 2\.\d KiB, on `+p.socket()+`, pid \d+$`, owner.line())
	h := attach(t, p.socket(), "m")
	require.Equal(t, digests(t, path), handleDigests(t, h))
	owner.signal(syscall.SIGTERM)
	require.Equal(t, cli.ExitOK, owner.exit(), owner.stderr)
	require.Contains(t, owner.stderr.String(), "loaded m: 2.")
	require.Contains(t, owner.stderr.String(), "msg=stopped")
	require.NoFileExists(t, p.socket())
	require.Equal(t, digests(t, path), handleDigests(t, h), "memory outlives the owner")
	eventually(t, "the lease ended with the owner", func() bool { return !h.Leased() })
}

func TestServeAfterCrash(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("m.safetensors", 1)
	owner := p.serve("m=" + path)
	h := attach(t, p.socket(), "m")
	owner.signal(syscall.SIGKILL)
	require.Equal(t, -1, owner.exit())
	require.FileExists(t, p.socket(), "a killed owner leaves its socket")
	require.Equal(t, digests(t, path), handleDigests(t, h))
	p.serve("m=" + p.model("other.safetensors", 2))
	require.Equal(t, digests(t, path), handleDigests(t, h), "the old mapping stays")
	require.NotEqual(t, digests(t, path), handleDigests(t, attach(t, p.socket(), "m")))
}

func TestSecondOwner(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("m.safetensors", 1)
	first := p.serve("m=" + path)
	inode := func() os.FileInfo {
		info, err := os.Stat(p.socket())
		require.NoError(t, err)
		return info
	}
	before := inode()
	text := p.fails(cli.ExitFailure, "serve", "other="+path)
	require.Contains(t, text, "another owner is serving on this socket")
	require.Contains(t, text, "locked by process")
	require.NotContains(t, text, "loaded", "the socket is bound before loading")
	require.True(t, os.SameFile(before, inode()))
	require.Contains(t, p.must("ls"), "m ")
	p.must("ping", "-c", "1")
	require.NotContains(t, first.stderr.String(), "level=WARN")
}

func TestServeReloads(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("m.safetensors", 1)
	owner := p.serve("m="+path, "--retain", "1")
	old := attach(t, p.socket(), "m")
	before := digests(t, path)
	p.model("m.safetensors", 9)
	changed := old.Changed()
	owner.signal(syscall.SIGHUP)
	<-changed
	require.EqualValues(t, 2, old.Newest())
	require.Equal(t, before, handleDigests(t, old))
	fresh := attach(t, p.socket(), "m")
	require.EqualValues(t, 2, fresh.Version())
	require.Equal(t, digests(t, path), handleDigests(t, fresh))

	require.NoError(t, os.WriteFile(path, []byte("broken"), 0o600))
	owner.signal(syscall.SIGHUP)
	eventually(t, "the owner logs the error", func() bool { return strings.Contains(owner.stderr.String(), "level=ERROR") })
	require.Contains(t, owner.stderr.String(), "m.safetensors: file is truncated")
	require.Contains(t, p.must("ls"), "m           2")
	owner.signal(syscall.SIGINT)
	require.Equal(t, cli.ExitOK, owner.exit())
}

// serve loads a model from the hub's cache on disk, and a reload loads the commit that the branch points to by then.
// Nothing is downloaded: the error for a missing model contains the command to download it.
func TestServeFromHubCache(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	p := newPlace(t)
	folder := filepath.Join(cache, "models--org--m")
	commit := func(digit string, seed byte) string {
		commit := strings.Repeat(digit, 40)
		require.NoError(t, os.MkdirAll(filepath.Join(folder, "snapshots", commit), 0o700))
		require.NoError(t, os.MkdirAll(filepath.Join(folder, "refs"), 0o700))
		file := filepath.Join(folder, "snapshots", commit, "model.safetensors")
		require.NoError(t, os.Symlink(p.model("blob-"+digit, seed), file))
		require.NoError(t, os.WriteFile(filepath.Join(folder, "refs", "main"), []byte(commit), 0o600))
		return file
	}
	first := commit("a", 1)
	owner := p.serve("m=hf:org/m")
	old := attach(t, p.socket(), "m")
	require.Equal(t, digests(t, first), handleDigests(t, old))
	changed := old.Changed()
	second := commit("b", 2)
	owner.signal(syscall.SIGHUP)
	<-changed
	require.Equal(t, digests(t, second), handleDigests(t, attach(t, p.socket(), "m")))
	require.Contains(t, p.must("publish", "old=hf://org/m@"+strings.Repeat("a", 40)), "published old version 1")
	require.Equal(t, digests(t, first), handleDigests(t, attach(t, p.socket(), "old")))
	require.Contains(t, p.fails(cli.ExitFailure, "publish", "n=hf:org/missing"), "hf download org/missing")
	require.Contains(t, p.fails(cli.ExitUsage, "publish", "n=hf:../../etc"), "not ORG/MODEL")
}

func TestServeWithoutModels(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	owner := p.start(p.command("serve", "--socket", p.file("s"), "--log-level", "error"))
	require.Contains(t, owner.line(), "serving nothing yet on "+p.file("s"))
	r := p.run("ls", "--socket", p.file("s"))
	require.Equal(t, result{"", "nothing is published on " + p.file("s") + "\n", 0}, r)
	require.Equal(t, "[]\n", p.must("ls", "--socket", p.file("s"), "--json"))
	owner.signal(syscall.SIGTERM)
	require.Equal(t, cli.ExitOK, owner.exit())
	require.Empty(t, owner.stderr.String())
}

func TestServeBadInput(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	good := p.model("good.safetensors", 1)
	whole, err := os.ReadFile(good)
	require.NoError(t, err)
	bad := func(name string, data []byte) string {
		require.NoError(t, os.WriteFile(p.file(name), data, 0o600))
		return p.file(name)
	}
	header := func(text string) []byte {
		return append([]byte{byte(len(text)), 0, 0, 0, 0, 0, 0, 0}, text...)
	}
	for path, want := range map[string]string{
		bad("cut.safetensors", whole[:len(whole)-1]):                                         "file is truncated",
		bad("long.safetensors", append(whole, 0)):                                            "bytes after the last tensor",
		bad("huge.safetensors", []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, '{'}): "header is too large",
		bad("json.safetensors", header(`{"a":`)):                                             "not valid JSON",
		bad("twice.safetensors", header(`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`)): "duplicate tensor name",
		p.file("missing.safetensors"): "no such file",
		filepath.Join(p.dir):          "more than one model here",
	} {
		text := p.fails(cli.ExitFailure, "serve", "good="+good, "bad="+path)
		require.Contains(t, text, path)
		require.Contains(t, text, want)
		require.NotContains(t, text, "loaded", "headers are checked before anything is loaded")
	}
	text := p.fails(cli.ExitFailure, "serve", "good="+good, "--device", "tpu:0")
	require.Contains(t, text, "use host or cuda:N")
	require.NoError(t, os.Chmod(p.dir, 0o777))
	require.Contains(t, p.fails(cli.ExitFailure, "serve", "good="+good), "others may write it")
	require.NoError(t, os.Chmod(p.dir, 0o700))
	require.Contains(t, p.fails(cli.ExitFailure, "serve", "--socket", p.file(strings.Repeat("x", 108))), "at most 107")
	require.NoFileExists(t, p.socket())
}

func TestServeInterruptedWhileLoading(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.file("sparse.safetensors")
	require.NoError(t, module.SynthesizeFile(path, module.Synthetic{Tensors: 1, Bytes: 1 << 20}))
	c := p.command("serve", "m="+path)
	c.Env = append(c.Env, "NOTIFY_SOCKET="+p.file("notify"))
	manager := listenNotify(t, p.file("notify"))
	owner := p.start(c)
	require.Contains(t, receive(t, manager), "STATUS=loading m", "status before the first byte")
	owner.signal(syscall.SIGTERM)
	require.Equal(t, cli.ExitOK, owner.exit(), "it was told to stop, wherever it was: %s", owner.stderr)
	require.NotContains(t, owner.stderr.String(), "goroutine")
	require.NoFileExists(t, p.socket())
}
