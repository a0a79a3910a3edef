package transfer_test

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// publishBytes is the size of the published models.
const publishBytes = 3<<12 + 100

// testPool returns a pool of host memory.
func testPool(t testing.TB) *host.Pool {
	t.Helper()
	fixture.HostOnly(t, "pools are of host memory")
	p := host.NewPool(fixture.Device(t).(*host.Device), host.PoolOptions{Idle: time.Hour})
	t.Cleanup(func() { p.Close() })
	drivertest.Needs(t, "leases", p.Reuses() == nil, "the kernel does not say whether others have memory")
	return p
}

// uniform returns a model whose bytes are all one value, so that reuse under a reader is visible.
func uniform(dev driver.Device, value uint8) (*module.StateDict, error) {
	sd, err := module.Empty(dev, []module.NamedSpec{{Name: "w", DType: tensor.Uint8, Shape: tensor.Shape{publishBytes}}})
	if err != nil {
		return nil, err
	}
	x, _ := sd.Get("w")
	data, err := tensor.Data[uint8](x)
	for _, v := range []uint8{unused, value} {
		for i := range data {
			data[i] = v
		}
	}
	return sd, err
}

// publishers returns the two ways to publish: in the process of the owner, and as its client.
func publishers(s *endpoint.Server, c *endpoint.Client) map[string]func(dev driver.Device, value uint8) error {
	ctx := context.Background()
	return map[string]func(dev driver.Device, value uint8) error{
		"owner": func(dev driver.Device, value uint8) error {
			sd, err := uniform(dev, value)
			if err != nil {
				return err
			}
			defer sd.Close()
			_, err = s.Publish(ctx, "m", sd, endpoint.PublishOptions{})
			return err
		},
		"client": func(dev driver.Device, value uint8) error {
			sd, err := uniform(dev, value)
			if err != nil {
				return err
			}
			defer sd.Close()
			_, err = c.Publish(ctx, "m", sd, endpoint.PublishOptions{})
			return err
		},
	}
}

// seenIn checks that all bytes of a handle are one value, and returns it.
func seenIn(t assert.TestingT, h *endpoint.Handle) uint8 {
	x, found := h.StateDict().Get("w")
	assert.True(t, found)
	data, err := tensor.Data[uint8](x)
	if assert.NoError(t, err) && assert.Len(t, data, publishBytes) {
		assert.Equal(t, len(data), bytes.Count(data, data[:1]), "bytes changed under a reader")
		assert.NotEqual(t, uint8(unused), data[0])
		return data[0]
	}
	return 0
}

// allBack waits until all memory of a pool, of one size, is free: as many allocations as there are slabs reuse them.
func allBack(t *testing.T, pool *host.Pool, size int64, before driver.PoolStats) {
	t.Helper()
	proctest.Eventually(t, fixture.WaitLimit, "all memory is back", func() bool {
		now := driver.Pools()
		pieces := now.Slabs - before.Slabs
		require.Equal(t, pieces*size, now.Bytes-before.Bytes)
		var all []driver.Memory
		for range pieces {
			mem, err := pool.AllocUninitialized(size)
			require.NoError(t, err)
			all = append(all, mem)
		}
		reused := driver.Pools().Reused - now.Reused
		for _, mem := range all {
			require.NoError(t, mem.Close())
		}
		return pieces > 0 && reused == pieces
	})
}

// Readers verify versions through mappings, clones and late handles while a publisher reuses the memory of free
// versions. No byte changes under a reader.
func TestServerPublishReusesMemory(t *testing.T) {
	for _, who := range []string{"owner", "client"} {
		t.Run(who, func(t *testing.T) {
			pool := testPool(t)
			s := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard()})
			publish := publishers(s, fixture.SocketClient(t, s))[who]
			before := driver.Pools()
			require.NoError(t, publish(pool, 1))
			var stop atomic.Bool
			var all sync.WaitGroup
			for range 3 {
				c := fixture.SocketClient(t, s)
				all.Go(func() {
					for !stop.Load() {
						h, err := c.Acquire(context.Background(), "m", endpoint.AcquireOptions{})
						if !assert.NoError(t, err) {
							return
						}
						value := seenIn(t, h)
						clone := h.StateDict().Alias()
						assert.Equal(t, value, seenIn(t, h))
						assert.NoError(t, h.Close()) // the lease is released, the clone is open
						x, _ := clone.Get("w")
						assert.NoError(t, isAll(x, value))
						assert.NoError(t, clone.Close())
					}
				})
			}
			for i := 0; driver.Pools().Reused-before.Reused < 100 && !t.Failed(); i++ {
				require.NoError(t, publish(pool, uint8(1+i%100)))
				require.Less(t, i, 100_000, "nothing comes back")
			}
			stop.Store(true)
			all.Wait()
			require.NoError(t, s.Withdraw(context.Background(), "m"))
			allBack(t, pool, 4<<12, before)
		})
	}
}

// A reader that released its lease but kept its mapping sees the same version after later publications.
func TestServerPublishKeepsMappedMemory(t *testing.T) {
	for _, who := range []string{"owner", "client"} {
		t.Run(who, func(t *testing.T) {
			pool := testPool(t)
			s := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard()})
			reader := fixture.SocketClient(t, s)
			publish := publishers(s, fixture.SocketClient(t, s))[who]
			before := driver.Pools()
			var kept [][]byte
			for i := range 40 {
				require.NoError(t, publish(pool, uint8(1+i)))
				if i%10 != 0 {
					continue
				}
				h, err := reader.Acquire(context.Background(), "m", endpoint.AcquireOptions{})
				require.NoError(t, err)
				require.EqualValues(t, 1+i, seenIn(t, h))
				handed, err := h.StateDict().Storages()[0].Memory().Export()
				require.NoError(t, err)
				data, err := unix.Mmap(int(handed.File.Fd()), 0, publishBytes, unix.PROT_READ, unix.MAP_SHARED)
				require.NoError(t, err)
				require.NoError(t, handed.Close())
				require.NoError(t, h.Close())
				proctest.Eventually(t, fixture.WaitLimit, "the lease is back", func() bool {
					models, err := s.List(context.Background())
					require.NoError(t, err)
					return len(models[0].Versions[0].Holders) == 0
				})
				kept = append(kept, data)
			}
			for i, data := range kept {
				require.Equal(t, publishBytes, bytes.Count(data, []byte{uint8(1 + 10*i)}), "version %d", 1+10*i)
				require.NoError(t, unix.Munmap(data))
			}
			require.Positive(t, driver.Pools().Reused-before.Reused, "the others come back")
		})
	}
}

// Readers in other processes are killed while they hold versions. They never see another version's bytes, and finally
// all memory is free.
func TestServerPublishReusesMemoryOfKilled(t *testing.T) {
	pool := testPool(t)
	s := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard()})
	before := driver.Pools()
	seed := uint64(0)
	publish := func() {
		seed++
		sd, err := module.Synthesize(pool, module.Synthetic{Seed: seed, Tensors: 3, Bytes: 1 << 16})
		require.NoError(t, err)
		fixture.PublishOn(t, s, "m", sd)
	}
	for range 4 {
		publish()
		child := fixture.Client(t, s.Socket())
		child.Acquire(fixture.Acquisition{Name: "m", Key: "k"})
		held := seed
		for range 3 {
			publish()
		}
		child.Check("k", fixture.Model{Seed: held})
		child.Kill()
	}
	require.NoError(t, s.Withdraw(context.Background(), "m"))
	require.Positive(t, driver.Pools().Reused-before.Reused)
	allBack(t, pool, 1<<16, before)
}
