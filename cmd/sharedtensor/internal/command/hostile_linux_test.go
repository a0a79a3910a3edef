package command

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// hostileOwner starts a hostile owner on the default socket.
func (p *place) hostileOwner(mood string) {
	p.t.Helper()
	exe, err := os.Executable()
	require.NoError(p.t, err)
	_ = os.Remove(p.socket())
	c := exec.Command(exe)
	c.Env, c.Dir = append(p.env, hostileSocketEnv+"="+p.socket(), hostileMoodEnv+"="+mood), p.dir
	c.Stderr = io.Discard
	require.NoError(p.t, c.Start())
	p.t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	eventually(p.t, "the hostile owner listens", func() bool { return cli.Alive(p.socket()) })
}

// requireHarmless fails if text contains control characters.
func requireHarmless(t testing.TB, text string, about ...any) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && !unicode.IsPrint(r) {
			require.Failf(t, "a control character", "%U in %q, of %v", r, text, about)
		}
	}
}

// hostileCommands are the command lines that send requests to an owner.
var hostileCommands = []string{
	"ls", "ls --all", "ls --json", "ls m", "inspect m", "inspect m --json", "inspect --name m --version 3", "get m -o out",
	"get m -o out --version 2", "ping -c 1", "ping -c 1 --json", "holders", "holders --json", "holders m",
	"top --once -i 50ms", "top --once -i 50ms --json", "metrics", "call f", "call f x=1", "call f --json", "call nothing", "submit f", "submit f --json",
	"tasks", "tasks --json", "wait evil", "wait --json evil", "wait --result evil", "cancel evil", "endpoints", "endpoints f", "endpoints --json",
	"endpoints nothing", "objects", "objects --json", "release evil", "release --force evil", "release --force --json evil", "invalidate f",
	"invalidate f x=1 --json", "publish m=model.safetensors", "rollback m", "rollback m --json", "upgrade --within 100ms", "withdraw m", "place m --device host", "doctor", "doctor --json", "call f x=@m:t",
}

// hostileWatches run until they are stopped.
var hostileWatches = [][]string{{"tasks", "--watch"}, {"tasks", "--watch", "--json"}, {"watch"}, {"watch", "--json"}, {"watch", "m"}}

// askNobody lists the commands that are safe from a hostile owner, with the reason.
var askNobody = map[string]string{
	"serve": "reads only files, see TestHostileFileOutputIsPrintable", "demo": "starts its own owners; files as for serve",
	"bench": "starts its own owners", "config": "reads a file of the user", "keep": "prints only its own socket", "completion": "prints a script", "help": "prints help", "version": "prints the build",
}

// Every command is tested with a hostile owner, or listed with a reason in askNobody.
func TestHostileOwnerCoversCommands(t *testing.T) {
	t.Parallel()
	root := newRootCommand()
	root.InitDefaultCompletionCmd()
	fed := map[string]bool{}
	for _, line := range hostileCommands {
		fed[strings.Fields(line)[0]] = true
	}
	for _, words := range hostileWatches {
		fed[words[0]] = true
	}
	for _, c := range root.Commands() {
		if c.Hidden {
			continue // a process of another command
		}
		require.NotEqual(t, fed[c.Name()], askNobody[c.Name()] != "", "is %s fed with what a hostile owner says?", c.Name())
		delete(fed, c.Name())
	}
	require.Empty(t, fed, "every listed command exists")
}

// No command prints a control character or crashes on a number, for any answer of an owner.
func TestHostileOwnerOutputIsPrintable(t *testing.T) {
	for _, mood := range hostileMoods {
		t.Run(mood, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.model("model.safetensors", 1)
			p.hostileOwner(mood)
			said := 0
			for i, line := range hostileCommands {
				if mood == hostileGoodbye && i%5 != 0 {
					continue // these wait for another owner until their timeout
				}
				r := p.run(append(strings.Fields(line), "--timeout", "100ms")...)
				require.Contains(t, []int{cli.ExitOK, cli.ExitFailure}, r.code, "%s: %s", line, r.stderr)
				require.NotContains(t, r.stderr, "goroutine ", line)
				requireHarmless(t, r.stdout, mood, line)
				requireHarmless(t, r.stderr, mood, line)
				if strings.Contains(r.stdout+r.stderr, "evil") {
					said++
				}
			}
			require.True(t, mood == hostileGoodbye || said > len(hostileCommands)/4, "most commands print the owner's texts")
			for _, line := range []string{"ls", "call", "wait", "cancel", "release", "holders", "objects"} {
				r := p.run("__complete", line, "")
				requireHarmless(t, strings.ReplaceAll(r.stdout, "\t", " "), mood, "completion of", line)
			}
			for _, line := range hostileWatches {
				s := p.start(p.command(append(line, "--timeout", "5s")...))
				time.Sleep(200 * time.Millisecond)
				s.signal(syscall.SIGINT)
				for s.lines.Scan() {
					requireHarmless(t, s.lines.Text(), mood, line)
				}
				require.LessOrEqual(t, s.exit(), cli.ExitFailure, "%v: %s", line, s.stderr)
				requireHarmless(t, s.stderr.String(), mood, line)
			}
		})
	}
}

// On a terminal, commands print escape sequences, but none chosen by the owner.
func TestHostileOwnerOnTerminal(t *testing.T) {
	t.Parallel()
	for _, mood := range []string{hostileAnswers, hostileLow, hostileErrors} {
		p := newPlace(t)
		p.hostileOwner(mood)
		for _, line := range [][]string{{"tasks", "--watch"}, {"top", "-i", "50ms"}, {"wait", "evil"}, {"ls"}, {"call", "f"}} {
			tty := newPTY(t, 100, 30)
			c := p.command(append(line, "--timeout", "300ms")...)
			c.Stdin, c.Stdout, c.Stderr = tty.slave, tty.slave, tty.slave
			require.NoError(t, c.Start())
			stop := time.AfterFunc(400*time.Millisecond, func() { _ = c.Process.Signal(syscall.SIGINT) })
			_ = c.Wait()
			stop.Stop()
			screen := tty.screen.String()
			require.NotContains(t, screen, "\x1b]0;", line)
			require.NotContains(t, screen, "\x07", line)
			require.NotContains(t, screen, "\u009b", line)
			require.NotContains(t, screen, "\u202e", line)
			require.NotContains(t, screen, "\x1b[2J", line)
			require.NotContains(t, screen, "goroutine ", line)
		}
	}
}

// No command prints a control character, for any content or name of a file.
func TestHostileFileOutputIsPrintable(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	h, err := safetensors.NewHeader([]safetensors.TensorInfo{{Name: "t\x1b[2J\u009b", DType: tensor.Float32, Shape: tensor.Shape{2}}},
		map[string]string{"\x1b]0;k\x07": "v\x1b[2J\u009b\u202e"})
	require.NoError(t, err)
	path := p.file("m\x1b[2J\u009b.safetensors")
	require.NoError(t, safetensors.WriteFile(path, h, func(w io.Writer, info safetensors.TensorInfo) error {
		_, err := w.Write(make([]byte, info.Bytes()))
		return err
	}))
	index := p.file("i.safetensors.index.json")
	require.NoError(t, os.WriteFile(index, []byte(`{"weight_map":{"a":"shard\u001b[2J\u009b.safetensors"}}`), 0o600))
	broken := p.file("b\x1b[2J.safetensors")
	require.NoError(t, os.WriteFile(broken, []byte("{}"), 0o600))
	for _, line := range [][]string{
		{"inspect", path}, {"inspect", path, "--json", "--digest"}, {"inspect", index}, {"inspect", broken}, {"serve", "m=" + index}, {"serve", "m=" + broken},
		{"publish", "m=" + path}, {"call", "f", "x=@" + path}, {"get", "m", "-o", path}, {"demo", broken}, {"ls\x1b[2J"}, {"ls", "--\x1b[2J"},
	} {
		r := p.run(line...)
		requireHarmless(t, r.stdout, line)
		requireHarmless(t, r.stderr, line)
	}
	owner := p.serve("m=" + path)
	for _, line := range [][]string{{"ls"}, {"ls", "--json"}, {"inspect", "m"}, {"inspect", "m", "--json"}, {"top", "--once", "-i", "50ms"}, {"get", "m", "-o", p.file("o\x1b")}} {
		r := p.run(line...)
		require.Equal(t, cli.ExitOK, r.code, r.stderr)
		requireHarmless(t, r.stdout, line)
		requireHarmless(t, r.stderr, line)
	}
	owner.signal(syscall.SIGTERM)
	require.Equal(t, cli.ExitOK, owner.exit())
	requireHarmless(t, owner.stderr.String())
}
