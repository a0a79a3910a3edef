//go:build linux

package gpu_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/nvjitlink"
	"github.com/sharedtensor/sharedtensor/driver/cuda/nvrtc"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// The kernel calls a function that another source defines.
const (
	twiceSource = "__device__ float twice(float v) { return 2 * v; }\n"
	applySource = "extern __device__ float twice(float);\n" +
		"extern \"C\" __global__ void apply(float *x, int n) {\n" +
		"  int i = blockIdx.x * blockDim.x + threadIdx.x;\n" +
		"  if (i < n) x[i] = twice(x[i]);\n" +
		"}\n"
)

// needCompilers skips the test without NVRTC or nvJitLink, or fails it if the environment requires them. It returns the
// architectures of the device for PTX and for machine code.
func needCompilers(tb testing.TB, dev *cuda.Device) (ptx, machine string) {
	tb.Helper()
	realOnly(tb, "it runs no compiled code")
	err := nvrtc.Load("")
	drivertest.Needs(tb, "nvrtc", err == nil, fmt.Sprint(err))
	err = nvjitlink.Load("")
	drivertest.Needs(tb, "nvjitlink", err == nil, fmt.Sprint(err))
	p, err := dev.Properties()
	require.NoError(tb, err)
	tb.Logf("%s, %s", nvrtc.File(), nvjitlink.File())
	return fmt.Sprintf("compute_%d%d", p.ComputeMajor, p.ComputeMinor), nvrtc.SM(p.ComputeMajor, p.ComputeMinor)
}

// Code of every format that NVRTC and nvJitLink produce runs on the device.
func TestCompiledKernels(t *testing.T) {
	dev := openDevice(t)
	ptx, machine := needCompilers(t, dev)
	compile := func(name, source, arch string, format nvrtc.Format, relocatable bool) []byte {
		b, err := nvrtc.Compile(t.Context(), name, source, nvrtc.Options{Arch: arch, Format: format, Relocatable: relocatable})
		require.NoError(t, err)
		return b.Code
	}
	link := func(format nvrtc.Format, input func(name string, data []byte) nvjitlink.Input) []byte {
		inputs := []nvjitlink.Input{
			input("apply", compile("apply.cu", applySource, machine, format, true)),
			input("twice", compile("twice.cu", twiceSource, machine, format, true)),
		}
		l, err := nvjitlink.Link(t.Context(), inputs, nvjitlink.Options{Arch: machine})
		require.NoError(t, err)
		return l.Code
	}
	whole := twiceSource + applySource
	for name, image := range map[string][]byte{
		"PTX":           compile("whole.cu", whole, ptx, nvrtc.PTX, false),
		"cubin":         compile("whole.cu", whole, machine, nvrtc.Cubin, false),
		"linked cubins": link(nvrtc.Cubin, nvjitlink.Cubin),
		"linked LTO-IR": link(nvrtc.LTOIR, nvjitlink.LTOIR),
		"linked PTX":    link(nvrtc.PTX, nvjitlink.PTX),
	} {
		t.Run(name, func(t *testing.T) {
			mod, err := dev.LoadModule(image)
			keep(t, mod, err)
			f, err := mod.Function("apply")
			require.NoError(t, err)
			const n = 1000
			values := noise(n, 5)
			xt, x := onDevice(t, dev, tensor.Shape{n}, values)
			require.NoError(t, f.Launch(cuda.LaunchConfig{Grid: cuda.Dim3{X: (n + 255) / 256}, Block: cuda.Dim3{X: 256}}, x, n))
			require.NoError(t, dev.Synchronize())
			got, err := tensor.Float32s(xt)
			require.NoError(t, err)
			for i := range got {
				require.Equal(t, 2*values[i], got[i], i)
			}
		})
	}
}
