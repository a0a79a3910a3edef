package command

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
)

// demoPlace returns a place that is also the directory for temporary files, so that tests find files a demo leaves
// behind.
func demoPlace(t *testing.T) *place {
	p := newPlace(t)
	p.env = append(p.env, "TMPDIR="+p.dir)
	return p
}

// empty waits until all files of demos are removed and all their processes have ended.
func (p *place) empty() {
	p.t.Helper()
	eventually(p.t, "the demo cleaned up", func() bool {
		left, err := filepath.Glob(p.file("sharedtensor-demo-*"))
		require.NoError(p.t, err)
		return len(left) == 0 && len(p.processes()) == 0
	})
}

// processes returns the command lines that name the place.
func (p *place) processes() (list []string) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(p.t, err)
	for _, path := range lines {
		line, _ := os.ReadFile(path) // it may have ended in the meantime
		if strings.Contains(string(line), p.dir+"/sharedtensor-demo-") {
			list = append(list, string(line))
		}
	}
	return list
}

func TestDemo(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"generated": {"--size", "4MiB"}, "file": nil} {
		t.Run(name, func(t *testing.T) {
			p := demoPlace(t)
			if args == nil {
				args = []string{p.model("m.safetensors", 1)}
			}
			got := p.run(append([]string{"demo"}, args...)...)
			require.Equal(t, cli.ExitOK, got.code, got.stderr)
			require.Empty(t, got.stderr)
			for _, want := range []string{
				"\nall 4 computed the same", "\none copy: 4 processes", "\nkilled client 3 (SIGKILL): ", "\nclient 2 switched to version 2",
				"\nkilled the owner (SIGKILL): ", "\none copy: 3 processes", "left nothing behind\n",
			} {
				require.Contains(t, got.stdout, want)
			}
			for line := range strings.Lines(got.stdout) {
				require.LessOrEqual(t, len([]rune(line)), 81, line) // with its last character, so that it fits a terminal of 80 columns
			}
			eventually(t, "the keeper, which sees its owner's end, has ended", func() bool { return len(p.processes()) == 0 })
			p.empty()
		})
	}
}

// A demo that is stopped by signals leaves nothing behind. The second signal allows no time for cleanup.
func TestDemoSignalled(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		for _, at := range []string{"owner,", "client 3,", "publisher,", "new owner,"} {
			p := demoPlace(t)
			s := p.start(p.command("demo", "--size", "1MiB"))
			for !strings.HasPrefix(s.line(), at) {
			}
			s.signal(sig)
			require.NotEqual(t, cli.ExitOK, s.exit(), "%v at %q", sig, at)
			if sig != syscall.SIGKILL {
				require.Equal(t, "sharedtensor: interrupted\n", s.stderr.String())
			}
			p.empty()
		}
	}
}

func TestDemoRefuses(t *testing.T) {
	t.Parallel()
	p := demoPlace(t)
	for line, want := range map[string]string{
		"demo --size 0":                  "must be positive",
		"demo --size many":               "as in 64MiB",
		"demo --size 1MiB x.safetensors": "cannot be used with FILE",
		"demo a b":                       "accepts at most 1 arg",
		"demo-process owner":             "DIR is missing",
	} {
		require.Contains(t, p.fails(cli.ExitUsage, strings.Fields(line)...), want, line)
	}
	require.Contains(t, p.fails(cli.ExitFailure, "demo", "missing.safetensors"), "missing.safetensors: no such file")
	p.empty()
}

// A demo process without a director only removes directories of demos.
func TestDemoProcessKeepsOtherDirectories(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	require.NoError(t, os.WriteFile(p.file("mine"), nil, 0o600))
	require.Contains(t, p.fails(cli.ExitFailure, "demo-process", "owner", p.dir), "is not a directory of the demo")
	require.FileExists(t, p.file("mine"))
}

func TestParseBytes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"0": 0, "4096": 4096, "64MiB": 64 << 20, "64 MiB": 64 << 20, "1.5 GB": 1.5e9, "2g": 2 << 30, "1k": 1024, "7B": 7, " 3tib ": 3 << 40,
		term.FormatBytes(64 << 20): 64 << 20,
	} {
		got, err := term.ParseBytes(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "MiB", "-1", "1e30", "nan", "inf", "9223372036854775808", "8EiB", "1 2", "0x1p70"} {
		_, err := term.ParseBytes(text)
		require.Error(t, err, text)
	}
}
