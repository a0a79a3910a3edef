//go:build linux

package gpu_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// signalReport loads the driver in a process that has not used it. It reports how each step changed the signal
// handlers.
func signalReport() (r response, err error) {
	before, err := sigactions()
	if err != nil {
		return r, err
	}
	caught := signalsCaught()
	var dev *cuda.Device
	var says []string
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"loading the library", func() error { return cu.Load("") }},
		{"cuInit", func() error { return cu.Init(0).Err() }},
		{"making a context", func() (err error) { dev, err = cuda.Open(0); return err }},
		{"running a kernel", func() error { return runEmpty(dev) }},
	} {
		if err := step.run(); err != nil {
			return r, fmt.Errorf("%s: %w", step.name, err)
		}
		after, err := sigactions()
		if err != nil {
			return r, err
		}
		says = append(says, signalChanges(step.name, before, after)...)
		before = after
	}
	r.Text = "none: all 64 are as before loading, cuInit, a context and a kernel"
	if len(says) > 0 {
		r.Text = strings.Join(says, "; ")
	}
	r.Text += fmt.Sprintf(" (SigCgt %s before, %s after)", caught, signalsCaught())
	return r, dev.Close()
}

func signalChanges(step string, before, after [signals + 1]sigaction) (says []string) {
	for n := 1; n <= signals; n++ {
		if before[n] == after[n] {
			continue
		}
		what := "a handler"
		switch {
		case after[n].handler == sigDefault:
			what = "the default"
		case after[n].handler == sigIgnore:
			what = "ignored"
		case after[n].flags&saOnStack == 0:
			what = "a handler WITHOUT SA_ONSTACK, which crashes Go programs"
		default:
			what += " with SA_ONSTACK"
		}
		says = append(says, fmt.Sprintf("%s makes %s %s", step, unix.SignalName(unix.Signal(n)), what))
	}
	return says
}

// signalsCaught returns the mask of caught signals from /proc/self/status.
func signalsCaught() string {
	data, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(data)) {
		if mask, ok := strings.CutPrefix(line, "SigCgt:"); ok {
			return strings.TrimSpace(mask)
		}
	}
	return "unknown"
}

func runEmpty(dev *cuda.Device) error {
	mod, err := dev.LoadModule([]byte(kernelsPTX))
	if err != nil {
		return err
	}
	f, err := mod.Function("empty")
	if err == nil {
		err = f.Launch(cuda.LaunchConfig{})
	}
	return errors.Join(err, dev.Synchronize(), mod.Close())
}

func TestFactSignalHandlers(t *testing.T) {
	openDevice(t)
	p := start(t)
	r := p.must(request{Do: "signals"})
	p.end()
	fact(t, "signal-handlers", "%s", r.Text)
	require.NotContains(t, r.Text, "WITHOUT", "Go cannot live with such a handler")
}

// descriptorReport lists the descriptors that the driver opened in this process and that child processes would inherit.
func descriptorReport() (string, error) {
	before, err := inheritable()
	if err != nil {
		return "", err
	}
	dev, err := cuda.Open(0)
	if err != nil {
		return "", err
	}
	if err := runEmpty(dev); err != nil {
		return "", err
	}
	after, err := inheritable()
	if err != nil {
		return "", err
	}
	counts := map[string][2]int{}
	for fd, f := range after {
		if _, old := before[fd]; old {
			continue
		}
		c := counts[f.target]
		c[0]++
		if f.inherited {
			c[1]++
		}
		counts[f.target] = c
	}
	var says []string
	for target, c := range counts {
		says = append(says, fmt.Sprintf("%d of %d %s", c[0]-c[1], c[0], target))
	}
	slices.Sort(says)
	if len(says) == 0 {
		return "it opens none", dev.Close()
	}
	return "close-on-exec: " + strings.Join(says, ", "), dev.Close()
}

type openFile struct {
	target    string
	inherited bool
}

// inheritable returns the descriptors of this process that child processes inherit.
func inheritable() (map[int]openFile, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	files := map[int]openFile{}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			return nil, err
		}
		target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		flags, flagErr := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flagErr != nil {
			continue // the descriptor of the directory itself
		}
		target, _, _ = strings.Cut(target, ":[") // removes the inode of a pipe or socket
		files[fd] = openFile{target, flags&unix.FD_CLOEXEC == 0}
	}
	return files, nil
}

func TestFactCloseOnExec(t *testing.T) {
	dev := openDevice(t)
	fd, err := rawExport(dev)
	require.NoError(t, err)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Close(fd))
	says := map[bool]string{true: "yes", false: "no, the binding sets it"}
	fact(t, "cloexec-export", "%s", says[flags&unix.FD_CLOEXEC != 0])

	p := start(t)
	fact(t, "cloexec-devices", "%s", p.must(request{Do: "descriptors"}).Text)
	p.end()

	// Child processes do not inherit the descriptors that the binding returns.
	m, err := dev.AllocMemory(1)
	keep(t, m, err)
	h, err := m.Export()
	keep(t, h, err)
	if h.Kind == driver.CUDAFD {
		flags, err = unix.FcntlInt(h.File.Fd(), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.NotZero(t, flags&unix.FD_CLOEXEC)
	}
}

func TestFactContextCost(t *testing.T) {
	dev := openDevice(t)
	p := start(t)
	free, _, err := dev.MemoryInfo()
	require.NoError(t, err)
	first := time.Duration(p.must(request{Do: "open", Kind: string(driver.CUDAFD)}).Nanos[0])
	after, _, err := dev.MemoryInfo()
	require.NoError(t, err)
	p.end()
	fact(t, "context-bytes", "%.0f MiB, while nobody else used the GPU", float64(free-after)/(1<<20))
	times := []time.Duration{first}
	for range 4 {
		p := start(t)
		times = append(times, time.Duration(p.must(request{Do: "open", Kind: string(driver.CUDAFD)}).Nanos[0]))
		p.end()
	}
	fact(t, "context-open", "%s, median of %d processes, another one has the GPU open", short(median(times)), len(times))
}

func TestFactHandleKinds(t *testing.T) {
	dev := openDevice(t)
	var says []string
	for _, s := range dev.Probe() {
		if s.Err == nil {
			says = append(says, fmt.Sprintf("%s works", s.Kind))
		} else {
			says = append(says, fmt.Sprintf("%s does not: %v", s.Kind, s.Err))
		}
	}
	fact(t, "handle-kinds", "%s", strings.Join(says, "; "))
}

// torchProgram prints the version of PyTorch and the bytes that it writes before the handles of an expandable segment.
const torchProgram = `
import torch
x = torch.arange(1 << 20, device="cuda")
h = x.untyped_storage()._share_cuda_()[1]
print(torch.__version__, len(h), h[:64].hex())
`

func TestFactTorchHandle(t *testing.T) {
	realOnly(t, "PyTorch needs the real driver")
	openDevice(t)
	out, err := python(t, torchProgram, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "PYTORCH_ALLOC_CONF=expandable_segments:True")
	if err != nil {
		fact(t, "torch-handle", "%s: no PyTorch with CUDA here: %v", notMeasured, err)
		return
	}
	words := strings.Fields(lastLine(out))
	require.Len(t, words, 3, out)
	fact(t, "torch-handle", "PyTorch %s: %s bytes, which begin with %s", words[0], words[1], words[2])
}

func lastLine(text string) (last string) {
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if strings.TrimSpace(lines.Text()) != "" {
			last = lines.Text()
		}
	}
	return last
}
