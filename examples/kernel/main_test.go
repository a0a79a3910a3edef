package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// The command and the example run on the stand-in for the driver and agree with Go.
func TestProgram(t *testing.T) {
	env := cudatest.Options{}.Env(t)
	dir, err := os.MkdirTemp("", "st") // short enough for a socket's path
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	env = append(env, "SHARED_TENSOR_BASE_PATH="+filepath.Join(dir, "s"))
	out, err := exec.Command("go", "build", "-o", dir+"/", ".", "../../cmd/sharedtensor").CombinedOutput()
	require.NoError(t, err, "%s", out)
	file := filepath.Join(dir, "model.safetensors")
	require.NoError(t, module.SynthesizeFile(file, module.Synthetic{Tensors: 3, Bytes: 3 << 18, Seed: 4}))

	owner := exec.Command(filepath.Join(dir, "sharedtensor"), "serve", "--device", "cuda:0", "m="+file)
	owner.Env, owner.Stderr = env, os.Stderr
	stdout, err := owner.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, owner.Start())
	t.Cleanup(func() { owner.Process.Kill(); owner.Wait() })
	require.True(t, bufio.NewScanner(stdout).Scan(), "the owner ended")

	want := expected(t, file)
	run := func(library, message string) {
		t.Helper()
		kernel := exec.Command(filepath.Join(dir, "kernel"), "m")
		kernel.Env = append(env, "SHAREDTENSOR_LIBNVRTC="+library, "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
		var stdout, stderr strings.Builder
		kernel.Stdout, kernel.Stderr = &stdout, &stderr
		require.NoError(t, kernel.Run(), stderr.String())
		require.Equal(t, want, stdout.String())
		require.Contains(t, stderr.String(), message)
	}
	run("/does/not/exist", "using the PTX in matmul.ptx")
	library := os.Getenv("SHAREDTENSOR_LIBNVRTC")
	drivertest.Needs(t, "nvrtc", library != "", "no SHAREDTENSOR_LIBNVRTC: the kernel is not compiled from its source")
	run(library, "compiled matmul.cu with "+library)
	require.DirExists(t, filepath.Join(dir, "cache", "sharedtensor", "jit"))
	run(library, "compiled matmul.cu with "+library) // from the cache
}

// A launch takes tensors, so the memory of the model is not exposed, and is released when the model is.
func TestRowSumsDoNotExposeTheMatrix(t *testing.T) {
	cudatest.Start(t)
	dev, err := cuda.Open(0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	code, err := dev.LoadModule(fallback)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, code.Close()) })
	kernel, err := code.Function("matmul")
	require.NoError(t, err)
	weight, err := tensor.FromSlice(dev, tensor.Shape{2, 3}, []float32{1, 2, 3, 4, 5, 6})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, weight.Close()) })
	sums, err := rowSums(dev, kernel, weight)
	require.NoError(t, err)
	require.Equal(t, []float32{6, 15}, sums)
	require.False(t, weight.Storage().Memory().(driver.Addressable).Exposed().Load())
}

// expected returns the output, computed in Go from the file in the kernel's order of additions, so with the same
// rounding.
func expected(t *testing.T, file string) (text string) {
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	sd, err := module.Load(context.Background(), dev, file, module.LoadOptions{})
	require.NoError(t, err)
	defer sd.Close()
	for name, w := range sd.All() {
		values, err := tensor.Float32s(w)
		require.NoError(t, err)
		columns := int(w.Shape()[1])
		sum := func(row []float32) (s float32) {
			for _, v := range row {
				s += v
			}
			return s
		}
		text += fmt.Sprintf("%-24s %-12v row sums %.4f ... %.4f\n", name, w.Shape(), sum(values[:columns]), sum(values[len(values)-columns:]))
	}
	return text
}
