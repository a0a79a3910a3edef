package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/examples/vad/internal/vadtest"
	"github.com/sharedtensor/sharedtensor/examples/vad/wav"
	"github.com/sharedtensor/sharedtensor/module"
)

// The test binary is also the owner process: with this variable set to a socket it serves the file in its first
// argument.
const ownerVariable = "VAD_TEST_OWNER"

func TestMain(m *testing.M) {
	if socket := os.Getenv(ownerVariable); socket != "" {
		if err := own(socket, os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	os.RemoveAll(buildFolder)
	os.Exit(code)
}

// buildFolder contains the command after its first build.
var buildFolder string

// own serves the weights as "vad" until it is killed, and prints a line when it is ready.
func own(socket, weights string) error {
	ctx := context.Background()
	dev, err := host.Open()
	if err != nil {
		return err
	}
	sd, err := module.Load(ctx, dev, weights, module.LoadOptions{})
	if err != nil {
		return err
	}
	defer sd.Close()
	server, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}})
	if err != nil {
		return err
	}
	if _, err := server.Publish(ctx, "vad", sd, endpoint.PublishOptions{}); err != nil {
		return err
	}
	fmt.Println("ready")
	return server.Serve(ctx)
}

// startOwner starts an owner process for the weights and returns its socket.
func startOwner(t *testing.T, weights string) string {
	socket := filepath.Join(t.TempDir(), "owner.sock")
	c := exec.Command(os.Args[0], weights)
	c.Env = append(os.Environ(), ownerVariable+"="+socket)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		require.NoError(t, c.Process.Kill())
		var exit *exec.ExitError
		require.ErrorAs(t, c.Wait(), &exit)
		require.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal(), "the owner ended before the test")
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	return socket
}

// build compiles the command on its first call and returns its path.
func build(t *testing.T) string {
	if runtime.GOOS != "linux" {
		t.Skip("sharing between processes needs Linux")
	}
	path, err := compile()
	require.NoError(t, err)
	return path
}

var compile = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "vad-test-")
	if err != nil {
		return "", err
	}
	buildFolder = dir
	path := filepath.Join(dir, "vad")
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, nil
})

// vad runs the command and returns its output.
func vad(t *testing.T, path string, args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	c := exec.Command(path, args...)
	c.Stdout, c.Stderr = &out, &errs
	err = c.Run()
	return out.String(), errs.String(), err
}

func requireExpected(t *testing.T, want, got []float64) {
	require.Len(t, got, len(want))
	for i := range want {
		require.InDelta(t, want[i], got[i], 1e-3, "line %d", i+1)
	}
}

func TestCommand(t *testing.T) {
	t.Parallel()
	weights := vadtest.File(t, "silero_vad_16k.safetensors")
	clip := vadtest.File(t, "speech.wav")
	want := vadtest.Expected(t)
	path := build(t)
	socket := startOwner(t, weights)

	for name, args := range map[string][]string{
		"attached":  {"--socket", socket, "--name", "vad", clip},
		"own owner": {"--weights", weights, clip},
	} {
		t.Run(name+", lines", func(t *testing.T) {
			out, errs, err := vad(t, path, args...)
			require.NoError(t, err, errs)
			require.Empty(t, errs)
			var got []float64
			for line := range strings.Lines(out) {
				p, err := strconv.ParseFloat(strings.TrimSuffix(line, "\n"), 64)
				require.NoError(t, err)
				got = append(got, p)
			}
			requireExpected(t, want, got)
		})
		t.Run(name+", JSON", func(t *testing.T) {
			out, errs, err := vad(t, path, append(args, "--json")...)
			require.NoError(t, err, errs)
			var got []float64
			require.NoError(t, json.Unmarshal([]byte(out), &got))
			requireExpected(t, want, got)
		})
	}

	t.Run("unknown name", func(t *testing.T) {
		_, errs, err := vad(t, path, "--socket", socket, "--name", "other", clip)
		requireFails(t, err)
		require.Contains(t, errs, "other")
	})
}

// silence returns a clip of the given number of samples.
func silence(t *testing.T, samples, rate int) string {
	var b bytes.Buffer
	require.NoError(t, wav.Encode(&b, &wav.Clip{SampleRate: rate, Samples: make([]int16, samples)}))
	path := filepath.Join(t.TempDir(), "silence.wav")
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
	return path
}

func requireFails(t *testing.T, err error) {
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 1, exit.ExitCode())
}

func TestCommandRefuses(t *testing.T) {
	t.Parallel()
	path := build(t)
	clip := silence(t, 1000, 16000)
	other := filepath.Join(t.TempDir(), "other.safetensors")
	require.NoError(t, os.WriteFile(other, []byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"), 0o600))
	nobody := filepath.Join(t.TempDir(), "nobody.sock")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no weights":      {[]string{clip}, "name weights"},
		"both":            {[]string{"--name", "vad", "--weights", other, clip}, "name weights"},
		"no clip":         {[]string{"--weights", other}, "accepts 1 arg"},
		"missing clip":    {[]string{"--weights", other, clip + ".none"}, clip + ".none"},
		"clip at 8 kHz":   {[]string{"--weights", other, silence(t, 10, 8000)}, "8000 Hz, want 16000 Hz"},
		"not a clip":      {[]string{"--weights", other, other}, "not a WAV file"},
		"not this model":  {[]string{"--weights", other, clip}, `tensor "stft_conv.weight" is missing`},
		"missing weights": {[]string{"--weights", other + ".none", clip}, other + ".none"},
		"nobody serves":   {[]string{"--socket", nobody, "--name", "vad", clip}, nobody},
	} {
		t.Run(name, func(t *testing.T) {
			out, errs, err := vad(t, path, c.args...)
			requireFails(t, err)
			require.Empty(t, out)
			require.Contains(t, errs, c.want)
			require.Equal(t, 1, strings.Count(errs, "\n"), "one sentence: %s", errs)
		})
	}
}

func TestOwnOwnerLeavesNothing(t *testing.T) {
	weights := vadtest.File(t, "silero_vad_16k.safetensors")
	t.Setenv("TMPDIR", t.TempDir())
	clip := silence(t, 1000, 16000)
	once := func() {
		var out bytes.Buffer
		require.NoError(t, run(context.Background(), options{weights: weights}, clip, &out))
		require.Equal(t, 2, strings.Count(out.String(), "\n"), "1000 samples are two chunks")
	}
	once()
	files, goroutines := descriptors(t), runtime.NumGoroutine()
	once()
	require.Equal(t, files, descriptors(t))
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestCanceled(t *testing.T) {
	t.Parallel()
	weights := vadtest.File(t, "silero_vad_16k.safetensors")
	ctx, cancel := context.WithCancelCause(context.Background())
	gone := errors.New("gone")
	cancel(gone)
	err := run(ctx, options{weights: weights}, silence(t, 1000, 16000), os.Stdout)
	require.ErrorIs(t, err, gone)
}

// descriptors counts the open files of this process.
func descriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}
