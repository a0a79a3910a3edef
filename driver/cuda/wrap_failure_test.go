package cuda_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// wrapping makes a resource with package cu, wraps it, and releases it like its owner.
type wrapping struct {
	kind    string // of Live
	make    func(t *testing.T, d *cuda.Device) uint64
	wrap    func(d *cuda.Device, h uint64, own cuda.Ownership) (closer, error)
	release func(h uint64) cu.Result
}

var wrappings = map[string]wrapping{
	"stream": {
		kind: "streams",
		make: func(t *testing.T, d *cuda.Device) uint64 {
			return uint64(foreign(t, d, func(h *cu.Stream) cu.Result { return cu.StreamCreate(h, cu.STREAM_NON_BLOCKING) }))
		},
		wrap: func(d *cuda.Device, h uint64, own cuda.Ownership) (closer, error) {
			return made(d.WrapStream(cu.Stream(h), own))
		},
		release: func(h uint64) cu.Result { return cu.StreamDestroy(cu.Stream(h)) },
	},
	"event": {
		kind: "events",
		make: func(t *testing.T, d *cuda.Device) uint64 {
			return uint64(foreign(t, d, func(h *cu.Event) cu.Result { return cu.EventCreate(h, cu.EVENT_DISABLE_TIMING) }))
		},
		wrap: func(d *cuda.Device, h uint64, own cuda.Ownership) (closer, error) {
			return made(d.WrapEvent(cu.Event(h), own))
		},
		release: func(h uint64) cu.Result { return cu.EventDestroy(cu.Event(h)) },
	},
	"memory": {
		kind: "allocations",
		make: func(t *testing.T, d *cuda.Device) uint64 {
			return uint64(foreign(t, d, func(p *cu.DevicePtr) cu.Result { return cu.MemAlloc(p, 4096) }))
		},
		wrap: func(d *cuda.Device, h uint64, own cuda.Ownership) (closer, error) {
			return made(d.WrapMemory(cu.DevicePtr(h), 4096, own))
		},
		release: func(h uint64) cu.Result { return cu.MemFree(cu.DevicePtr(h)) },
	},
	"context": {
		kind: "contexts",
		make: func(t *testing.T, d *cuda.Device) uint64 {
			return uint64(foreign(t, d, func(c *cu.Context) cu.Result {
				r := cu.CtxCreate_v2(c, 0, d.Handle())
				cu.CtxPopCurrent(nil)
				return r
			}))
		},
		wrap: func(_ *cuda.Device, h uint64, own cuda.Ownership) (closer, error) {
			return made(cuda.WrapContext(cu.Context(h), own))
		},
		release: func(h uint64) cu.Result { return cu.CtxDestroy(cu.Context(h)) },
	},
}

// An owned resource that cannot be wrapped is released after each failing call. A borrowed one is left alone.
func TestFailedWrapReleasesOwnedResources(t *testing.T) {
	fake := startFake(t)
	for name, w := range wrappings {
		for _, own := range []cuda.Ownership{cuda.Owned, cuda.Borrowed} {
			t.Run(fmt.Sprintf("%s/owned=%v", name, own), func(t *testing.T) {
				d := openDevice(t, 0)
				before := fake.Live()
				for k := int64(1); ; k++ {
					h := w.make(t, d)
					fake.FailCall(k, cu.ERROR_OUT_OF_MEMORY)
					c, err := w.wrap(d, h, own)
					failed := fake.Failed()
					fake.FailNone()
					if err == nil {
						require.NoError(t, c.Close())
					} else {
						require.ErrorIs(t, err, driver.ErrOutOfMemory, failed)
					}
					if own == cuda.Borrowed {
						require.NoError(t, d.Do(func() error { return w.release(h).Err() }), "the owner still has it after %s failed", failed)
					}
					require.Equal(t, before, fake.Live(), "after %s failed: %v", failed, err)
					if failed == "" {
						require.NoError(t, err)
						return
					}
				}
			})
		}
	}
}

// An owned resource is released if the arguments are refused, and if the device is closed.
func TestRefusedWrapReleasesOwnedResources(t *testing.T) {
	fake := startFake(t)
	d, other := openDevice(t, 0), openDevice(t, 1)
	closed, err := cuda.Open(0)
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	for name, c := range map[string]struct {
		of   wrapping
		wrap func(h uint64) (closer, error)
		want error
	}{
		"stream of another context": {wrappings["stream"], func(h uint64) (closer, error) {
			return made(other.WrapStream(cu.Stream(h), cuda.Owned))
		}, cuda.ErrContext},
		"memory of another device": {wrappings["memory"], func(h uint64) (closer, error) {
			return made(other.WrapMemory(cu.DevicePtr(h), 4096, cuda.Owned))
		}, driver.ErrInvalid},
		"too many bytes": {wrappings["memory"], func(h uint64) (closer, error) {
			return made(d.WrapMemory(cu.DevicePtr(h), 4097, cuda.Owned))
		}, driver.ErrRange},
		"no bytes": {wrappings["memory"], func(h uint64) (closer, error) {
			return made(d.WrapMemory(cu.DevicePtr(h), 0, cuda.Owned))
		}, driver.ErrInvalid},
		"option of a context": {wrappings["context"], func(h uint64) (closer, error) {
			return made(cuda.WrapContext(cu.Context(h), cuda.Owned, cuda.WithStaging(0, 0)))
		}, driver.ErrInvalid},
		"stream of a closed device": {wrappings["stream"], func(h uint64) (closer, error) {
			return made(closed.WrapStream(cu.Stream(h), cuda.Owned))
		}, os.ErrClosed},
		"event of a closed device": {wrappings["event"], func(h uint64) (closer, error) {
			return made(closed.WrapEvent(cu.Event(h), cuda.Owned))
		}, os.ErrClosed},
		"memory of a closed device": {wrappings["memory"], func(h uint64) (closer, error) {
			return made(closed.WrapMemory(cu.DevicePtr(h), 4096, cuda.Owned))
		}, os.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			before := fake.Live()
			_, err := c.wrap(c.of.make(t, d))
			require.ErrorIs(t, err, c.want)
			require.Equal(t, before, fake.Live())
		})
	}
	// Parts of allocations and handles that are unknown to the driver cannot be owned.
	p := foreign(t, d, func(p *cu.DevicePtr) cu.Result { return cu.MemAlloc(p, 4096) })
	before := fake.Live()
	_, err = d.WrapMemory(p+512, 512, cuda.Owned)
	require.ErrorIs(t, err, driver.ErrInvalid)
	_, err = d.WrapMemory(p+512, 8192, cuda.Owned)
	require.ErrorIs(t, err, driver.ErrRange)
	require.Equal(t, before, fake.Live())
	require.NoError(t, d.Do(func() error { return cu.MemFree(p).Err() }))
	_, err = d.WrapMemory(p, 4096, cuda.Owned)
	require.ErrorIs(t, err, driver.ErrInvalid)
	_, err = d.WrapStream(12345, cuda.Owned)
	require.Error(t, err)
	_, err = d.WrapEvent(12345, cuda.Owned)
	require.Error(t, err)
	_, err = cuda.WrapContext(12345, cuda.Owned)
	require.ErrorIs(t, err, cuda.ErrContext)
}
