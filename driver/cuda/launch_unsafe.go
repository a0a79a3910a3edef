package cuda

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Dim3 are the dimensions of a grid or a block; 0 counts as 1.
type Dim3 struct {
	// X, Y and Z are numbers of blocks, or of threads.
	X, Y, Z uint32
}

func (d Dim3) orOne() (x, y, z uint32) { return max(d.X, 1), max(d.Y, 1), max(d.Z, 1) }

// LaunchConfig says how a kernel runs.
type LaunchConfig struct {
	// Grid is the number of blocks, Block the number of threads of each.
	Grid, Block Dim3
	// SharedBytes is the dynamic shared memory of a block.
	SharedBytes uint32
	// Stream is the queue; nil means the default stream.
	Stream *Stream
}

// Launch queues the kernel. The arguments are, in order:
//
//   - [*Memory], or a [cu.DevicePtr], or any [driver.Addressable], for a pointer;
//   - bool, int8 to int64, uint8 to uint64, float32, float64, and types made of these, for a number of exactly that size;
//   - int and uint, for a number of the size that the kernel takes, if the value fits;
//   - arrays and structs of numbers, for a struct with the same layout in C.
//
// Their number and sizes are checked against what the kernel takes, where the driver tells (CUDA 12.4 and newer), and a
// mismatch is refused with [driver.ErrInvalid] before anything is queued. Whether four bytes are a float or an int
// nobody can check. What goes wrong while the kernel runs is reported by a later call.
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
	used := a.used
	var stream cu.Stream
	if cfg.Stream != nil {
		used = append(used, &cfg.Stream.resource)
		stream = cfg.Stream.handle
	}
	used = append(used, &f.mod.resource)
	return withAll(used, func() error {
		return f.mod.p.do(func() error { return f.queue(cfg, stream, a.pointers()) })
	})
}

// withAll runs fn with all objects kept from being closed. Each is locked once: a lock for reading taken twice would
// wait for ever behind a Close.
func withAll(used []*resource, fn func() error) error {
	for i, r := range used {
		if slices.Contains(used[:i], r) {
			continue
		}
		if err := r.use(); err != nil {
			return err
		}
		defer r.done()
	}
	return fn()
}

func (f *Function) queue(cfg LaunchConfig, stream cu.Stream, pointers []unsafe.Pointer) error {
	gx, gy, gz := cfg.Grid.orOne()
	bx, by, bz := cfg.Block.orOne()
	r := cu.LaunchKernel(f.handle, gx, gy, gz, bx, by, bz, cfg.SharedBytes, stream, unsafe.SliceData(pointers), nil)
	runtime.KeepAlive(pointers)
	return check("cuLaunchKernel", r)
}

// pointers are the addresses of the values, for the driver, which copies them before it returns.
func (a *arguments) pointers() []unsafe.Pointer {
	out := make([]unsafe.Pointer, len(a.offsets), len(a.offsets)+1)
	for i, off := range a.offsets {
		out[i] = unsafe.Pointer(&a.values[off])
	}
	return out
}
