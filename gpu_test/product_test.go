//go:build linux

package gpu_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/module"
)

// The command sharedtensor works on the GPU with clients in other processes.
func TestProduct(t *testing.T) {
	needGPU(t)
	p := product{program(t)}
	t.Run("Commands", p.testCommands)
	t.Run("OwnerKilled", p.testOwnerIsKilled)
	t.Run("Keeper", p.testKeeper)
	t.Run("Upgrade", p.testUpgrade)
	t.Run("Doctor", p.testDoctor)
	t.Run("WrongDevices", p.testWrongDevices)
}

// product holds the path of the command sharedtensor.
type product struct{ path string }

// program returns the path of the command: the value of SHAREDTENSOR_PROGRAM, the program beside this test binary, or
// one that is built for the test.
func program(tb testing.TB) string {
	tb.Helper()
	if path := os.Getenv("SHAREDTENSOR_PROGRAM"); path != "" {
		return path
	}
	exe, err := os.Executable()
	require.NoError(tb, err)
	beside := filepath.Join(filepath.Dir(exe), "sharedtensor")
	if _, err := os.Stat(beside); err == nil {
		return beside
	}
	path := filepath.Join(tb.TempDir(), "sharedtensor")
	out, err := exec.Command("go", "build", "-o", path, "../cmd/sharedtensor").CombinedOutput()
	require.NoError(tb, err, "%s", out)
	return path
}

// command prepares a run of the program on the given socket.
func (p product) command(socket string, args ...string) *exec.Cmd {
	return exec.Command(p.path, append(args, "--socket", socket)...)
}

// run runs the program, which must succeed, and returns its output.
func (p product) run(tb testing.TB, socket string, args ...string) string {
	tb.Helper()
	c := p.command(socket, args...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	require.NoError(tb, err, "%v: %s", args, stderr.String())
	return string(out)
}

// service starts the program and returns after it has printed its first line.
func (p product) service(tb testing.TB, socket string, args ...string) (*exec.Cmd, string) {
	tb.Helper()
	c := p.command(socket, args...)
	c.WaitDelay = time.Second
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.StdoutPipe()
	require.NoError(tb, err)
	require.NoError(tb, c.Start())
	tb.Cleanup(func() {
		if c.ProcessState == nil {
			c.Process.Kill()
			c.Wait()
		}
	})
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		c.Wait()
		tb.Fatalf("%v ended: %s", args, stderr.String())
	}
	return c, lines.Text()
}

// modelFile writes the model that agents derive from the seed.
func modelFile(tb testing.TB, seed byte, size int64) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "model.safetensors")
	require.NoError(tb, module.SynthesizeFile(path, module.Synthetic{Seed: uint64(seed), Tensors: 4, Bytes: max(size, 1<<16)}))
	return path
}

// digestsOf returns the digests of the tensors of a file.
func digestsOf(tb testing.TB, path string) map[string]module.Digest {
	tb.Helper()
	dev, err := host.Open()
	keep(tb, dev, err)
	sd, err := module.Load(context.Background(), dev, path, module.LoadOptions{})
	keep(tb, sd, err)
	d, err := module.Digests(context.Background(), sd, 0)
	require.NoError(tb, err)
	return d
}

// testCommands serves, lists, reads, publishes and withdraws with the command, each in a separate process.
func (p product) testCommands(t *testing.T) {
	socket, size := socketPath(t), int64(6<<20)
	file, second := modelFile(t, 31, size), modelFile(t, 32, size)
	_, line := p.service(t, socket, "serve", "--device", "cuda:0", "m="+file)
	require.Contains(t, line, "serving 1 model")
	require.Contains(t, p.run(t, socket, "ls"), "m")
	require.Contains(t, p.run(t, socket, "ping"), "answer from "+socket)

	copied := filepath.Join(t.TempDir(), "copy.safetensors")
	p.run(t, socket, "get", "m", "-o", copied)
	require.Equal(t, digestsOf(t, file), digestsOf(t, copied))

	c := client(t, driver.CUDAFD, socket)
	c.must(request{Do: "acquire", Name: "m", Key: "1"})
	c.must(request{Do: "watch"})
	require.Equal(t, "published m", c.must(request{Do: "next"}).Text)
	p.run(t, socket, "publish", "--device", "cuda:0", "m="+second)
	require.EqualValues(t, 2, c.must(request{Do: "next"}).Version)
	c.must(request{Do: "acquire", Name: "m", Key: "2"})
	c.must(request{Do: "check", Key: "1", Seed: 31, Bytes: size})
	c.must(request{Do: "check", Key: "2", Seed: 32, Bytes: size})
	p.run(t, socket, "get", "m", "-o", copied)
	require.Equal(t, digestsOf(t, second), digestsOf(t, copied))
	p.run(t, socket, "withdraw", "m")
	require.Equal(t, "withdrawn m", c.must(request{Do: "next"}).Text)
	c.must(request{Do: "check", Key: "2", Seed: 32, Bytes: size})
}

// testOwnerIsKilled kills the command while a client reads the model that it serves.
func (p product) testOwnerIsKilled(t *testing.T) {
	socket, size := socketPath(t), int64(16<<20)
	owner, _ := p.service(t, socket, "serve", "--device", "cuda:0", "m="+modelFile(t, 33, size))
	c := client(t, driver.CUDAFD, socket)
	c.must(request{Do: "acquire", Name: "m", Key: "h"})
	c.must(request{Do: "check", Key: "h", Seed: 33, Bytes: size})
	require.NoError(t, owner.Process.Signal(syscall.SIGKILL))
	require.Error(t, owner.Wait())
	overwrite(t, size)
	c.must(request{Do: "check", Key: "h", Seed: 33, Bytes: size})
	c.must(request{Do: "sum", Key: "h"})

	// The next owner on the same socket serves the same client.
	p.service(t, socket, "serve", "--device", "cuda:0", "m="+modelFile(t, 34, size))
	c.must(request{Do: "acquire", Name: "m", Key: "h2"})
	c.must(request{Do: "check", Key: "h2", Seed: 34, Bytes: size})
	c.must(request{Do: "check", Key: "h", Seed: 33, Bytes: size})
}

// testKeeper kills an owner whose models a keeper holds. The next owner serves the same versions, without a file.
func (p product) testKeeper(t *testing.T) {
	socket, size := socketPath(t), int64(16<<20)
	owner, _ := p.service(t, socket, "serve", "--device", "cuda:0", "--keep", "m="+modelFile(t, 35, size))
	keeper := listener(t, socket+".keep")
	t.Cleanup(func() { syscall.Kill(keeper, syscall.SIGTERM) })
	c := client(t, driver.CUDAFD, socket)
	c.must(request{Do: "acquire", Name: "m", Key: "h"})
	p.run(t, socket, "publish", "--device", "cuda:0", "n="+modelFile(t, 36, size)) // the owner has imported its memory
	require.NoError(t, owner.Process.Signal(syscall.SIGKILL))
	require.Error(t, owner.Wait())
	overwrite(t, size)

	p.service(t, socket, "serve", "--device", "cuda:0", "--keep")
	for i, name := range []string{"m", "n"} {
		require.EqualValues(t, 1, c.must(request{Do: "acquire", Name: name, Key: name}).Version)
		c.must(request{Do: "check", Key: name, Seed: byte(35 + i), Bytes: size})
	}
	c.must(request{Do: "check", Key: "h", Seed: 35, Bytes: size})
}

// listener returns the number of the process that listens on a socket.
func listener(tb testing.TB, socket string) int {
	tb.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(tb, err)
	defer unix.Close(fd)
	require.NoError(tb, unix.Connect(fd, &unix.SockaddrUnix{Name: socket}))
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	require.NoError(tb, err)
	return int(peer.Pid)
}

// testUpgrade replaces the owner's process. The new one serves the same memory.
func (p product) testUpgrade(t *testing.T) {
	socket, size := socketPath(t), int64(16<<20)
	owner, _ := p.service(t, socket, "serve", "--device", "cuda:0", "m="+modelFile(t, 37, size))
	c := client(t, driver.CUDAFD, socket)
	c.must(request{Do: "acquire", Name: "m", Key: "h"})
	p.run(t, socket, "publish", "--device", "cuda:0", "n="+modelFile(t, 38, size))
	var replaced struct{ PID int }
	require.NoError(t, json.Unmarshal([]byte(p.run(t, socket, "upgrade", "--json")), &replaced))
	t.Cleanup(func() { syscall.Kill(replaced.PID, syscall.SIGKILL) })
	if err := owner.Wait(); !errors.Is(err, exec.ErrWaitDelay) { // the new process has its standard error
		require.NoError(t, err)
	}
	for i, name := range []string{"m", "n"} {
		require.EqualValues(t, 1, c.must(request{Do: "acquire", Name: name, Key: name}).Version)
		c.must(request{Do: "check", Key: name, Seed: byte(37 + i), Bytes: size})
	}
	c.must(request{Do: "check", Key: "h", Seed: 37, Bytes: size})
}

// testDoctor checks that doctor finds the driver, the device and its capabilities.
func (p product) testDoctor(t *testing.T) {
	dev := openDevice(t)
	out, _ := p.command(socketPath(t), "doctor").Output() // the exit status depends on the whole host
	text := string(out)
	require.Contains(t, text, "CUDA driver")
	require.Contains(t, text, dev.Info().Name)
	for _, s := range dev.Probe() {
		require.True(t, strings.Contains(text, string(s.Kind)), "nothing about %s:\n%s", s.Kind, text)
	}
}

// testWrongDevices names devices that do not exist.
func (p product) testWrongDevices(t *testing.T) {
	for device, says := range map[string]string{"cuda:99": "99", "gpu": "gpu", "cuda:-1": "-1"} {
		out, err := p.command(socketPath(t), "serve", "--device", device).CombinedOutput()
		require.Error(t, err, device)
		require.Contains(t, string(out), says)
		require.Equal(t, 1, strings.Count(string(out), "\n"), "one line: %s", out)
	}
}
