// Package operation tests the built command under the conditions of unattended machines: containers, full disks,
// logs that are not read, and limits. `.ci/run operation` runs it. Every test uses processes of the command alone.
package operation

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/module"
)

// enableEnv enables the suite. It runs for up to three minutes.
const enableEnv = "SHAREDTENSOR_OPERATION"

// program is the built command, which every user can run.
var program string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Getenv(enableEnv) == "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("/tmp", "st")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "sharedtensor")
	out, err := exec.Command("go", "build", "-tags", "nocuda", "-o", program, "../..").CombinedOutput()
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "build the command: %v: %s\n", err, out)
		return 1
	}
	return m.Run()
}

// place is a directory for the files of one test.
type place struct {
	t   *testing.T
	dir string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	drivertest.Needs(t, "operation", os.Getenv(enableEnv) != "", "the suite runs with .ci/run operation")
	drivertest.Needs(t, "root", os.Getuid() == 0, "only root can make the conditions of this test")
	dir, err := os.MkdirTemp("/tmp", "st")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return &place{t, dir}
}

// needsNamespaces skips the test if new namespaces cannot be made.
func (p *place) needsNamespaces() {
	p.t.Helper()
	_, err := exec.LookPath("unshare")
	if err == nil {
		err = exec.Command("unshare", "--pid", "--fork", "--mount", "--mount-proc", "true").Run()
	}
	drivertest.Needs(p.t, "namespaces", err == nil, fmt.Sprintf("this machine makes no new namespaces: %v", err))
}

func (p *place) path(name string) string { return filepath.Join(p.dir, name) }

func (p *place) socket() string { return p.path("owner.sock") }

// model writes a model of a number of bytes.
func (p *place) model(name string, bytes int64) string {
	p.t.Helper()
	path := p.path(name)
	require.NoError(p.t, module.SynthesizeFile(path, module.Synthetic{Tensors: 2, Bytes: bytes, Seed: 1}))
	require.NoError(p.t, os.Chmod(path, 0o644))
	return path
}

// process is a running command.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	out *buffer
	end chan struct{} // closed when it has ended
}

// buffer collects the output of a process.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start starts a command and kills it at the end of the test.
func (p *place) start(cmd *exec.Cmd) *process {
	p.t.Helper()
	proc := &process{t: p.t, cmd: cmd, out: &buffer{}, end: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = proc.out
	}
	if cmd.Stderr == nil {
		cmd.Stderr = proc.out
	}
	cmd.WaitDelay = time.Second
	require.NoError(p.t, cmd.Start())
	go func() {
		_ = cmd.Wait() // the state has it
		close(proc.end)
	}()
	p.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-proc.end
		if p.t.Failed() {
			p.t.Logf("%s:\n%s", strings.Join(cmd.Args, " "), proc.out)
		}
	})
	return proc
}

// serve starts an owner.
func (p *place) serve(args ...string) *process {
	p.t.Helper()
	proc := p.start(exec.Command(program, append([]string{"serve", "--socket", p.socket()}, args...)...))
	p.serving()
	return proc
}

// serving waits until the owner answers.
func (p *place) serving() {
	p.t.Helper()
	p.eventually("the owner answers", func() bool { _, err := p.try("ping", "-c", "1"); return err == nil })
}

// stop sends SIGTERM and requires that the process ends within a time.
func (p *process) stop(within time.Duration) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	p.ends(within)
}

func (p *process) ends(within time.Duration) {
	p.t.Helper()
	select {
	case <-p.end:
	case <-time.After(within):
		p.t.Fatalf("%s still runs after %v:\n%s", p.cmd.Args, within, p.out)
	}
}

// running reports whether the process runs.
func (p *process) running() bool {
	select {
	case <-p.end:
		return false
	default:
		return true
	}
}

// client returns a command of a client of the owner.
func (p *place) client(name string, args ...string) []string {
	return append([]string{program, name, "--socket", p.socket()}, args...)
}

// try runs a client command and returns what it prints.
func (p *place) try(name string, args ...string) (string, error) {
	words := p.client(name, args...)
	return output(exec.Command(words[0], words[1:]...))
}

// must is try for a command that succeeds.
func (p *place) must(name string, args ...string) string {
	p.t.Helper()
	out, err := p.try(name, args...)
	require.NoError(p.t, err, out)
	return out
}

// output runs a command for at most 20 s and returns what it prints.
func output(cmd *exec.Cmd) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	limited := exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
	limited.Env, limited.Dir, limited.SysProcAttr, limited.WaitDelay = cmd.Env, cmd.Dir, cmd.SysProcAttr, time.Second
	out, err := limited.CombinedOutput()
	return string(out), err
}

// eventually waits up to 20 s for a condition.
func (p *place) eventually(what string, holds func() bool) {
	p.t.Helper()
	for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("not within 20 s: %s", what)
		}
	}
}
