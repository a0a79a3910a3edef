package command

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

func TestGet(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("m.safetensors", 1)
	p.serve("m="+path, "--retain", "1")
	copied := p.file("copy.safetensors")
	require.Regexp(t, `^wrote .*copy\.safetensors: m version 1, 6 tensors, 2\.\d KiB in `, p.must("get", "m", "-o", copied))
	require.Equal(t, digests(t, path), digests(t, copied))
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	got, err := os.ReadFile(copied)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got), "round trip of a file that this program wrote")

	p.must("publish", "m="+p.model("n.safetensors", 2))
	p.must("get", "m", "--version", "1", "-o", copied)
	require.Equal(t, digests(t, path), digests(t, copied))
	p.must("get", "m", "-o", copied)
	require.Equal(t, digests(t, p.file("n.safetensors")), digests(t, copied))

	require.Contains(t, p.fails(cli.ExitFailure, "get", "x", "-o", p.file("none")), `"x": owner: not found`)
	require.Contains(t, p.fails(cli.ExitFailure, "get", "m", "--version", "9", "-o", p.file("none")), "version 9")
	require.Contains(t, p.fails(cli.ExitFailure, "get", "m", "-o", p.file("no/dir")), "no such file")
	require.NoFileExists(t, p.file("none"))
}

func TestGetSilero(t *testing.T) {
	t.Parallel()
	path := silero(t)
	p := newPlace(t)
	p.serve("vad=" + path)
	copied := p.file("copy.safetensors")
	p.must("get", "vad", "-o", copied)
	require.Equal(t, digests(t, path), digests(t, copied))
	require.Equal(t, headerOf(t, path).Metadata, headerOf(t, copied).Metadata)
}

func headerOf(t testing.TB, path string) *safetensors.Header {
	t.Helper()
	m, err := safetensors.Open(path)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	return m.Files[0].Header
}

func TestGetFullDisk(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.file("big.safetensors")
	require.NoError(t, module.SynthesizeFile(path, module.Synthetic{Tensors: 2, Bytes: 4 << 20}))
	p.serve("m=" + path)
	out := p.file("out")
	require.NoError(t, os.Mkdir(out, 0o700))
	old := filepath.Join(out, "old.safetensors")
	require.NoError(t, os.WriteFile(old, []byte("old"), 0o600))
	for _, target := range []string{filepath.Join(out, "new.safetensors"), old} {
		c := p.command()
		c.Path = "/bin/sh"
		c.Args = []string{"sh", "-c", `ulimit -f 2000; exec "$@"`, "sh", program, "get", "m", "-o", target}
		r := p.wait(c)
		require.Equal(t, cli.ExitFailure, r.code)
		require.Regexp(t, `^sharedtensor: `+target+`: tensor ".*": write .*: file too large\n$`, r.stderr)
		require.Empty(t, r.stdout)
	}
	entries, err := os.ReadDir(out)
	require.NoError(t, err)
	require.Len(t, entries, 1, "the temporary file is removed")
	data, err := os.ReadFile(old)
	require.NoError(t, err)
	require.Equal(t, "old", string(data))
}

// get follows a link to a file that is not regular instead of replacing it, and writes - to standard output.
func TestGetToLinksAndStandardOutput(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("m.safetensors", 1)
	p.serve("m=" + path)
	for name, target := range map[string]string{"null": "/dev/null", "directory": p.dir, "output": "/dev/stdout"} {
		link := p.file(name)
		require.NoError(t, os.Symlink(target, link))
		text := p.fails(cli.ExitFailure, "get", "m", "-o", link)
		require.Contains(t, text, "link to something else")
		require.Contains(t, text, "-o - writes to standard output")
		now, err := os.Readlink(link)
		require.NoError(t, err, "the link is unchanged")
		require.Equal(t, target, now)
	}
	r := p.run("get", "m", "-o", "-")
	require.Equal(t, cli.ExitOK, r.code, r.stderr)
	require.NoFileExists(t, p.file("-"))
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, []byte(r.stdout)), "only the file")
	require.Contains(t, r.stderr, "wrote -: m version 1")
}

// A withdrawn version that still has holders is shown as withdrawn, not as superseded or missing.
func TestWithdrawnVersionState(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("m.safetensors", 1)
	p.serve("m=" + path)
	attach(t, p.socket(), "m")
	p.must("withdraw", "m")
	require.Regexp(t, `(?m)^m +1 .* withdrawn +`, p.must("ls", "--all"))
	require.Contains(t, p.fails(cli.ExitFailure, "get", "m", "-o", p.file("out")), "not found: it was withdrawn")
	p.must("publish", "m="+path)
	require.Regexp(t, `(?m)^m +2 .* current +.*\nm +1 .* withdrawn +`, p.must("ls", "--all"))
	require.Contains(t, p.must("holders"), "withdrawn")
	require.Contains(t, p.must("ls", "--json"), `"withdrawn": true`)
	require.Contains(t, p.fails(cli.ExitFailure, "get", "m", "--version", "1", "-o", p.file("out")), "it was withdrawn; its holders keep it")
}
