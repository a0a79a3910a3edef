package cuda

import (
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// MaxActiveBlocks returns the number of blocks of the given number of threads and bytes of dynamic shared memory that
// run on one multiprocessor at a time. It needs CUDA 6.5.
func (f *Function) MaxActiveBlocks(threads int, sharedBytes uint64) (int, error) {
	var n int32
	err := f.with(func(c cu.Context) error {
		return check("cuOccupancyMaxActiveBlocksPerMultiprocessor",
			c.OccupancyMaxActiveBlocksPerMultiprocessor(&n, f.handle, int32(threads), sharedBytes))
	})
	return int(n), f.dev.opError("occupancy of "+f.name, err)
}

// SuggestBlock returns the number of threads of a block that maximises occupancy, and the minimum number of blocks that
// does so. sharedBytes is the dynamic shared memory of a block. limit is the maximum number of threads of a block; 0
// means no limit. It needs CUDA 6.5.
func (f *Function) SuggestBlock(sharedBytes uint64, limit int) (threads, blocks int, err error) {
	return f.suggest(0, sharedBytes, limit)
}

// sharedBytes is the callback of the driver for the shared memory of a block. The driver passes no word of the caller, so
// one call runs at a time.
var sharedBytes struct {
	once     sync.Once
	callback cu.OccupancyB2DSize
	err      error

	mu sync.Mutex
	fn func(threads int) uint64
}

// SuggestBlockFunc is SuggestBlock for kernels whose dynamic shared memory depends on the number of threads: shared returns
// the bytes for a block. shared must not call CUDA.
func (f *Function) SuggestBlockFunc(shared func(threads int) uint64, limit int) (threads, blocks int, err error) {
	if shared == nil {
		return 0, 0, f.dev.opError("occupancy of "+f.name, invalid("no function"))
	}
	s := &sharedBytes
	s.once.Do(func() {
		callback, err := cu.NewCallback(func(threads uintptr) uintptr { return uintptr(s.fn(int(int32(threads)))) })
		s.callback, s.err = cu.OccupancyB2DSize(callback), err
	})
	if s.err != nil {
		return 0, 0, f.dev.opError("occupancy of "+f.name, &driver.UnsupportedError{Feature: "Go functions as callbacks", Reason: s.err.Error()})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fn = shared
	defer func() { s.fn = nil }()
	return f.suggest(s.callback, 0, limit)
}

func (f *Function) suggest(callback cu.OccupancyB2DSize, shared uint64, limit int) (threads, blocks int, err error) {
	var grid, block int32
	err = f.with(func(c cu.Context) error {
		return check("cuOccupancyMaxPotentialBlockSize",
			c.OccupancyMaxPotentialBlockSize(&grid, &block, f.handle, callback, shared, int32(limit)))
	})
	return int(block), int(grid), f.dev.opError("occupancy of "+f.name, err)
}

// AvailableSharedBytes returns the dynamic shared memory that each block can have if the given number of blocks of threads
// runs on one multiprocessor. It needs CUDA 11.0.
func (f *Function) AvailableSharedBytes(blocks, threads int) (uint64, error) {
	var n uint64
	err := f.with(func(c cu.Context) error {
		return check("cuOccupancyAvailableDynamicSMemPerBlock",
			c.OccupancyAvailableDynamicSMemPerBlock(&n, f.handle, int32(blocks), int32(threads)))
	})
	return n, f.dev.opError("occupancy of "+f.name, err)
}

// MaxClusterBlocks returns the largest size of a cluster, in blocks, with which the kernel can be launched. It uses the
// block, the shared memory and the attributes of cfg. It needs CUDA 11.8.
func (f *Function) MaxClusterBlocks(cfg LaunchConfig) (int, error) {
	return f.clusters(cfg, "cuOccupancyMaxPotentialClusterSize", cu.Context.OccupancyMaxPotentialClusterSize)
}

// MaxActiveClusters returns the number of clusters that run on the device at a time. cfg must have a [ClusterSize]. It
// needs CUDA 11.8.
func (f *Function) MaxActiveClusters(cfg LaunchConfig) (int, error) {
	return f.clusters(cfg, "cuOccupancyMaxActiveClusters", cu.Context.OccupancyMaxActiveClusters)
}

func (f *Function) clusters(cfg LaunchConfig, name string, query func(cu.Context, *int32, cu.Function, *cu.LaunchConfig) cu.Result) (int, error) {
	var n int32
	attrs, events, err := launchOptions(cfg.Attributes)
	if err == nil {
		err = withAll(events, func() error {
			return f.with(func(c cu.Context) error {
				config, unpin := cfg.raw(0, attrs)
				defer unpin()
				return check(name, query(c, &n, f.handle, config))
			})
		})
	}
	return int(n), f.dev.opError("occupancy of "+f.name, err)
}
