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
	// Attributes are optional properties, such as [Cooperative] and [ClusterSize], each at most once.
	Attributes []LaunchAttribute
}

// Launch queues the kernel. The arguments are, in order:
//
//   - for a pointer: [*Memory], [*Managed], [*Buffer] and types that embed [*Memory] as a whole; any [Region] such as
//     *tensor.Tensor; any [driver.Addressable]; [cu.DevicePtr];
//   - for a number of exactly that size: bool, int8 to int64, uint8 to uint64, float32, float64, complex64, complex128,
//     and types based on them;
//   - for a number of the size that the kernel takes, if the value fits: int and uint;
//   - for a struct with the same layout in C: arrays and structs of the numbers of exactly that size.
//
// Close of memory of this package waits for the kernel. An address (cu.DevicePtr), and a [driver.Addressable] of another
// package that is not a [Region], is not tracked: it must stay valid until the kernel is done.
//
// If the driver reports the parameters (CUDA 12.4 and newer), Launch checks the number and sizes of the arguments. It
// refuses a mismatch with [driver.ErrInvalid] and queues nothing. It cannot check whether four bytes are a float or an
// int. Errors of a running kernel are reported by a later call.
func (f *Function) Launch(cfg LaunchConfig, args ...any) error {
	return f.dev.opError("launch "+f.name, f.launch(cfg, args))
}

func (f *Function) launch(cfg LaunchConfig, args []any) error {
	a, err := f.pack(args)
	if err != nil {
		return err
	}
	return f.launchWith(&cfg, append(a.used, f.mod), unsafe.SliceData(a.pointers()))
}

// pack checks the arguments and converts them to bytes.
func (f *Function) pack(args []any) (*arguments, error) {
	if f.known && len(args) != len(f.params) {
		return nil, invalid("%d arguments, the kernel takes %d", len(args), len(f.params))
	}
	a := &arguments{values: make([]byte, 0, 16*len(args)), offsets: make([]int, 0, len(args)), used: make([]*resource, 0, len(args)+3)}
	for i, arg := range args {
		size := unknownSize
		if f.known {
			size = int(f.params[i].bytes)
		}
		if err := a.add(arg, size); err != nil {
			return nil, fmt.Errorf("argument %d: %w", i, err)
		}
	}
	return a, nil
}

// launchWith queues the kernel with one pointer for each argument. used are the objects that the launch uses, among
// them f.mod.
func (f *Function) launchWith(cfg *LaunchConfig, used []*resource, pointers *unsafe.Pointer) error {
	attrs, events, err := launchOptions(cfg.Attributes)
	if err != nil {
		return err
	}
	t := f.dev.p.legacy
	if cfg.Stream != nil {
		t = cfg.Stream.track
		used = append(used, &cfg.Stream.resource)
	}
	if f.dev.p != f.mod.p { // f.mod keeps only its own context alive
		if err := f.dev.hold(); err != nil {
			return err
		}
		defer func() { _ = f.dev.p.drop() }()
	}
	return withAll(append(used, events...), func() error {
		err := f.queue(cfg, t.handle, attrs, pointers)
		for _, r := range used {
			t.mark(r.life)
		}
		return err
	})
}

// queue calls the driver. It uses the older function if the launch has no attributes.
func (f *Function) queue(cfg *LaunchConfig, stream cu.Stream, attrs []cu.LaunchAttribute, pointers *unsafe.Pointer) error {
	c := f.dev.p.ctx
	gx, gy, gz := cfg.Grid.orOne()
	bx, by, bz := cfg.Block.orOne()
	if len(attrs) == 0 {
		return check("cuLaunchKernel", c.LaunchKernel(f.handle, gx, gy, gz, bx, by, bz, cfg.SharedBytes, stream, pointers, nil))
	}
	config, unpin := cfg.raw(stream, attrs)
	defer unpin()
	return launchError(attrs, check("cuLaunchKernelEx", c.LaunchKernelEx(config, f.handle, pointers, nil)))
}

// raw returns the configuration in the driver's form. The driver reads the attributes by an address inside of it, so their
// array is pinned until unpin is called.
func (cfg *LaunchConfig) raw(stream cu.Stream, attrs []cu.LaunchAttribute) (config *cu.LaunchConfig, unpin func()) {
	config = &cu.LaunchConfig{SharedMemBytes: cfg.SharedBytes, HStream: stream, NumAttrs: uint32(len(attrs))}
	config.GridDimX, config.GridDimY, config.GridDimZ = cfg.Grid.orOne()
	config.BlockDimX, config.BlockDimY, config.BlockDimZ = cfg.Block.orOne()
	if len(attrs) == 0 {
		return config, func() {}
	}
	pin := new(runtime.Pinner)
	pin.Pin(&attrs[0])
	config.Attrs = &attrs[0]
	return config, pin.Unpin
}

// pointers returns the addresses of the values. The driver copies the values before it returns.
func (a *arguments) pointers() []unsafe.Pointer {
	out := make([]unsafe.Pointer, len(a.offsets), len(a.offsets)+1)
	for i, off := range a.offsets {
		out[i] = unsafe.Pointer(&a.values[off])
	}
	return out
}
