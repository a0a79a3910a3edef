package command

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// mainPackage is the program's package.
const mainPackage = "../.."

// program is the path of the command, built once for all tests. Tests run it as real processes.
var program string

func TestMain(m *testing.M) {
	actAsChild()
	// Tests mostly wait for their processes. The command-line flag overrides this.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "sharedtensor-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "sharedtensor")
	build := exec.Command("go", "build", "-o", program, mainPackage)
	if !cli.BuiltWithCUDA {
		build = exec.Command("go", "build", "-tags", "nocuda", "-o", program, mainPackage)
	}
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "go build:", err)
		return 1
	}
	return m.Run()
}

// testPatience limits waits in tests. Tests do not measure it.
const testPatience = 30 * time.Second

// place is a private directory for one test, with the environment that puts the default socket there.
type place struct {
	t   testing.TB
	dir string
	env []string
}

// newPlace returns a place with a short path, because socket paths are limited to 107 bytes.
func newPlace(t testing.TB) *place {
	t.Helper()
	dir, err := os.MkdirTemp("", "st-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	env := []string{"XDG_RUNTIME_DIR=" + dir}
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch name {
		case "XDG_RUNTIME_DIR", "SHARED_TENSOR_BASE_PATH", "NVIDIA_DRA_LOCAL_IPC_DIR", "NOTIFY_SOCKET", "LISTEN_PID", "LISTEN_FDS":
		default:
			env = append(env, v)
		}
	}
	return &place{t: t, dir: dir, env: env}
}

// socket returns the default socket of the place.
func (p *place) socket() string { return filepath.Join(p.dir, "shared-tensor-0.sock") }

// file returns a path in the place.
func (p *place) file(name string) string { return filepath.Join(p.dir, name) }

// command prepares a run of the program.
func (p *place) command(args ...string) *exec.Cmd {
	c := exec.Command(program, args...)
	c.Env = p.env
	c.Dir = p.dir
	return c
}

// result is the exit status and output of a process.
type result struct {
	stdout, stderr string
	code           int
}

// run runs the program until it exits.
func (p *place) run(args ...string) result {
	p.t.Helper()
	return p.wait(p.command(args...))
}

// wait runs a prepared command until it exits.
func (p *place) wait(c *exec.Cmd) result {
	p.t.Helper()
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	require.NoError(p.t, c.Start())
	timer := time.AfterFunc(testPatience, func() { _ = c.Process.Kill() })
	defer timer.Stop()
	err := c.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(p.t, err)
	}
	return result{stdout.String(), stderr.String(), c.ProcessState.ExitCode()}
}

// must runs the program, which must succeed, and returns its output.
func (p *place) must(args ...string) string {
	p.t.Helper()
	r := p.run(args...)
	require.Equal(p.t, cli.ExitOK, r.code, "%v: %s", args, r.stderr)
	return r.stdout
}

// fails runs the program, which must fail with one line, and returns that line.
func (p *place) fails(code int, args ...string) string {
	p.t.Helper()
	r := p.run(args...)
	require.Equal(p.t, code, r.code, "%v: %s%s", args, r.stdout, r.stderr)
	require.Equal(p.t, 1, strings.Count(r.stderr, "\n"), r.stderr)
	require.True(p.t, strings.HasPrefix(r.stderr, "sharedtensor: "), r.stderr)
	return r.stderr
}

// process is a running program.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	lines  *bufio.Scanner
	stdout io.Closer
	stderr *safeBuffer
	once   sync.Once
	code   int
}

// safeBuffer can be read while a process writes to it.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start starts a prepared command. It is killed at the end of the test if it is still running.
func (p *place) start(c *exec.Cmd) *process {
	p.t.Helper()
	r, w, err := os.Pipe()
	require.NoError(p.t, err)
	s := &process{t: p.t, cmd: c, lines: bufio.NewScanner(r), stdout: r, stderr: &safeBuffer{}}
	c.Stdout, c.Stderr = w, s.stderr
	require.NoError(p.t, c.Start())
	require.NoError(p.t, w.Close())
	timer := time.AfterFunc(testPatience, func() { _ = c.Process.Kill() })
	p.t.Cleanup(func() {
		timer.Stop()
		_ = c.Process.Kill()
		s.exit()
		r.Close()
	})
	return s
}

// line returns the next line of output.
func (s *process) line() string {
	s.t.Helper()
	require.True(s.t, s.lines.Scan(), "the process ended: %s", s.stderr)
	return s.lines.Text()
}

// exit waits for the end and returns the exit status, or -1 after a signal.
func (s *process) exit() int {
	s.once.Do(func() {
		_ = s.cmd.Wait() // the status is checked below
		s.code = s.cmd.ProcessState.ExitCode()
	})
	return s.code
}

// signal sends sig to the process.
func (s *process) signal(sig syscall.Signal) {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Signal(sig))
}

// serve starts an owner and waits until it serves.
func (p *place) serve(args ...string) *process {
	p.t.Helper()
	s := p.start(p.command(append([]string{"serve"}, args...)...))
	require.Regexp(p.t, `^serving `, s.line())
	return s
}

// model writes a small safetensors file with several dtypes, a scalar, an empty tensor and metadata.
func (p *place) model(name string, seed byte) string {
	p.t.Helper()
	h, err := safetensors.NewHeader([]safetensors.TensorInfo{
		{Name: "layer.weight", DType: tensor.Float32, Shape: tensor.Shape{16, 33}},
		{Name: "layer.bias", DType: tensor.BFloat16, Shape: tensor.Shape{33}},
		{Name: "mask", DType: tensor.Bool, Shape: tensor.Shape{7}},
		{Name: "none", DType: tensor.Int64, Shape: tensor.Shape{0, 4}},
		{Name: "scale", DType: tensor.Float8E4M3FN, Shape: tensor.Shape{}},
	}, map[string]string{"format": "pt", safetensors.TiedKey: `{"layer.tied":"layer.weight"}`})
	require.NoError(p.t, err)
	path := p.file(name)
	next := seed
	require.NoError(p.t, safetensors.WriteFile(path, h, func(w io.Writer, info safetensors.TensorInfo) error {
		data := make([]byte, info.Bytes())
		for i := range data {
			next = next*5 + 1
			data[i] = next
		}
		if info.DType == tensor.Bool {
			for i := range data {
				data[i] &= 1
			}
		}
		_, err := w.Write(data)
		return err
	}))
	return path
}

// digests returns the digests of a file's tensors, including tied ones.
func digests(t testing.TB, path string) map[string]module.Digest {
	t.Helper()
	dev, err := cli.OpenHost()
	require.NoError(t, err)
	sd, err := module.Load(context.Background(), dev, path, module.LoadOptions{})
	require.NoError(t, err)
	d, err := module.Digests(context.Background(), sd, 0)
	require.NoError(t, err)
	require.NoError(t, sd.Close())
	require.NoError(t, dev.Close())
	return d
}

// eventually waits until another process makes the condition true.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, testPatience, 2*time.Millisecond, what)
}

// silero returns the shared test data, or skips the test if it is missing.
func silero(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("SHAREDTENSOR_TESTDATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "..", "..", "shared", "data")
	}
	path, err := filepath.Abs(filepath.Join(dir, "silero_vad_16k.safetensors"))
	require.NoError(t, err)
	if _, err := os.Stat(path); err != nil {
		t.Skip("the shared test data is not here:", err)
	}
	return path
}
