package cuda

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Dim3 holds the dimensions of a grid or a block. 0 counts as 1.
type Dim3 struct {
	// X, Y and Z are in blocks for a grid and in threads for a block.
	X, Y, Z uint32
}

func (d Dim3) orOne() (x, y, z uint32) { return max(d.X, 1), max(d.Y, 1), max(d.Z, 1) }

// LaunchConfig describes how a kernel is launched.
type LaunchConfig struct {
	// Grid is in blocks, Block in threads.
	Grid, Block Dim3
	// SharedBytes is the dynamic shared memory of each block.
	SharedBytes uint32
	// Stream is the queue; nil means the default stream.
	Stream *Stream
}

// Launch queues the kernel. The arguments are, in order:
//
//   - [*Memory], [cu.DevicePtr] or any [driver.Addressable], for a pointer;
//   - bool, int8 to int64, uint8 to uint64, float32, float64, and types based on them, for a number of exactly that size;
//   - int and uint, for a number of the size that the kernel takes, if the value fits;
//   - arrays and structs of numbers, for a struct with the same layout in C.
//
// If the driver reports the parameters (CUDA 12.4 and newer), Launch checks the number and sizes of the arguments. It
// refuses a mismatch with [driver.ErrInvalid] and queues nothing. It cannot check whether four bytes are a float or an
// int. Errors of a running kernel are reported by a later call.
func (f *Function) Launch(cfg LaunchConfig, args ...any) error {
	return f.mod.dev.opError("launch "+f.name, f.launch(cfg, args))
}

func (f *Function) launch(cfg LaunchConfig, args []any) error {
	if f.known && len(args) != len(f.params) {
		return invalid("%d arguments, the kernel takes %d", len(args), len(f.params))
	}
	a := arguments{values: make([]byte, 0, 16*len(args)), offsets: make([]int, 0, len(args)), used: make([]*resource, 0, len(args)+2)}
	for i, arg := range args {
		size := unknownSize
		if f.known {
			size = int(f.params[i].bytes)
		}
		if err := a.add(arg, size); err != nil {
			return fmt.Errorf("argument %d: %w", i, err)
		}
	}
	used := append(a.used, &f.mod.resource)
	if cfg.Stream == nil {
		return withAll(used, func() error {
			return f.mod.p.do(func() error { return f.queueAndMark(cfg, f.mod.p.legacy, used, &a) })
		})
	}
	return withAll(append(used, &cfg.Stream.resource), func() error {
		return f.mod.p.do(func() error { return f.queueAndMark(cfg, cfg.Stream.track, used, &a) })
	})
}

// queueAndMark queues the kernel and records its use of the module and of the memory among its arguments.
func (f *Function) queueAndMark(cfg LaunchConfig, t *track, used []*resource, a *arguments) error {
	err := f.queue(cfg, t.handle, a.pointers())
	for _, r := range used {
		t.mark(r.life)
	}
	return err
}

func (f *Function) queue(cfg LaunchConfig, stream cu.Stream, pointers []unsafe.Pointer) error {
	gx, gy, gz := cfg.Grid.orOne()
	bx, by, bz := cfg.Block.orOne()
	r := cu.LaunchKernel(f.handle, gx, gy, gz, bx, by, bz, cfg.SharedBytes, stream, unsafe.SliceData(pointers), nil)
	runtime.KeepAlive(pointers)
	return check("cuLaunchKernel", r)
}

// pointers returns the addresses of the values. The driver copies the values before it returns.
func (a *arguments) pointers() []unsafe.Pointer {
	out := make([]unsafe.Pointer, len(a.offsets), len(a.offsets)+1)
	for i, off := range a.offsets {
		out[i] = unsafe.Pointer(&a.values[off])
	}
	return out
}
