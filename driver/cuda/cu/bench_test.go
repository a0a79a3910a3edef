//go:build linux && (amd64 || arm64) && !nocuda

package cu

import (
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
)

// The benchmarks compare this package's calls with purego.RegisterFunc on the same C functions.

func BenchmarkNoArguments(b *testing.B) {
	use(b, "tiny")
	b.Run("cu", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			CtxSynchronize()
		}
	})
	b.Run("RegisterFunc", func(b *testing.B) {
		var call func() int32
		purego.RegisterFunc(&call, symbol(b, "cuCtxSynchronize"))
		b.ReportAllocs()
		for b.Loop() {
			call()
		}
	})
}

func BenchmarkMemAlloc(b *testing.B) {
	use(b, "tiny")
	out := new(DevicePtr)
	b.Run("cu", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			MemAlloc(out, 5)
		}
	})
	b.Run("RegisterFunc", func(b *testing.B) {
		var call func(*DevicePtr, uint64) int32
		purego.RegisterFunc(&call, symbol(b, "cuMemAlloc_v2"))
		b.ReportAllocs()
		for b.Loop() {
			call(out, 5)
		}
	})
}

func BenchmarkLaunchKernel(b *testing.B) {
	use(b, "tiny")
	x := new(int32)
	params := &[1]unsafe.Pointer{unsafe.Pointer(x)}
	b.Run("cu", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			LaunchKernel(1, 1, 1, 1, 1, 1, 1, 0, 0, &params[0], nil)
		}
	})
	b.Run("RegisterFunc", func(b *testing.B) {
		var call func(f Function, gx, gy, gz, bx, by, bz, shared uint32, s Stream, params, extra *unsafe.Pointer) int32
		purego.RegisterFunc(&call, symbol(b, "cuLaunchKernel"))
		b.ReportAllocs()
		for b.Loop() {
			call(1, 1, 1, 1, 1, 1, 1, 0, 0, &params[0], nil)
		}
	})
}

func BenchmarkIpcOpenMemHandle(b *testing.B) {
	use(b, "tiny")
	out, h := new(DevicePtr), IpcMemHandle{}
	b.Run("cu", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			IpcOpenMemHandle(out, h, 1)
		}
	})
	b.Run("RegisterFunc", func(b *testing.B) {
		var call func(*DevicePtr, IpcMemHandle, uint32) int32
		purego.RegisterFunc(&call, symbol(b, "cuIpcOpenMemHandle_v2"))
		b.ReportAllocs()
		for b.Loop() {
			call(out, h, 1)
		}
	})
}
