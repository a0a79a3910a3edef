//go:build !nocuda

package server_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// placing is an owner with host memory and two GPUs of the stand-in, which makes placements on both GPUs and on the host.
type placing struct {
	*endpoint.Server
	t       *testing.T
	fake    *cudatest.Fake
	devices []driver.Device // host, cuda:0, cuda:1
	opts    endpoint.ServerOptions
}

const mib = 1 << 20

// newPlacing returns an owner with a budget and a keep time for each device.
func newPlacing(t *testing.T, budget int64, keep time.Duration, more ...func(*endpoint.ServerOptions)) *placing {
	t.Helper()
	fixture.HostOnly(t, "it opens its own devices")
	p := &placing{t: t, fake: cudatest.Start(t, cudatest.Options{Devices: 2, Memory: 256 * mib})}
	p.fake.Leaks(t)
	h, err := host.Open()
	require.NoError(t, err)
	p.devices = []driver.Device{h}
	for i := range 2 {
		dev, err := cuda.Open(i, cuda.WithStaging(2, 64<<10))
		require.NoError(t, err)
		p.devices = append(p.devices, dev)
	}
	for _, dev := range p.devices {
		t.Cleanup(func() { require.NoError(t, dev.Close()) })
	}
	opts := endpoint.ServerOptions{Socket: proctest.SocketPath(t), Devices: p.devices, Logger: slog.New(slog.DiscardHandler)}
	for _, dev := range p.devices {
		opts.Placements = append(opts.Placements, endpoint.PlacementOptions{Device: dev, Budget: budget, Keep: keep})
	}
	for _, f := range more {
		f(&opts)
	}
	p.opts = opts
	p.start()
	return p
}

// start starts the owner.
func (p *placing) start() {
	p.t.Helper()
	s, err := endpoint.NewServer(p.opts)
	require.NoError(p.t, err)
	p.Server = s
	var served sync.WaitGroup
	served.Go(func() { _ = s.Serve(context.Background()) })
	p.t.Cleanup(func() { require.NoError(p.t, s.Close()); served.Wait() })
}

// keptFiles is a store in this process.
type keptFiles struct {
	mu    sync.Mutex
	files map[string]int
}

func (k *keptFiles) Put(name string, f *os.File) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	k.files[name] = fd
	return err
}

func (k *keptFiles) Remove(names ...string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range names {
		if fd, has := k.files[name]; has {
			_ = unix.Close(fd)
		}
		delete(k.files, name)
	}
	return nil
}

func (k *keptFiles) Stored() (map[string]*os.File, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[string]*os.File{}
	for name, stored := range k.files {
		fd, err := unix.FcntlInt(uintptr(stored), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		out[name] = os.NewFile(uintptr(fd), name)
	}
	return out, nil
}

func (k *keptFiles) names() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Keys(k.files))
}

// client returns a client of the socket, with the devices of the owner.
func (p *placing) client() *endpoint.Client {
	p.t.Helper()
	c, err := endpoint.Dial(p.t.Context(), endpoint.ClientOptions{Socket: p.Socket(), OverSocket: true, Devices: p.devices, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(p.t, err)
	p.t.Cleanup(func() { require.NoError(p.t, c.Close()) })
	return c
}

// publish publishes tensors of the given number of elements on a device: a and b, with a tied to c.
func (p *placing) publish(name string, on driver.Device, n int64) (sum module.Digest) {
	p.t.Helper()
	sd, err := module.New(on, []module.NamedSpec{
		{Name: "a", DType: tensor.Float32, Shape: tensor.Shape{n}}, {Name: "b", DType: tensor.Uint8, Shape: tensor.Shape{3}},
		{Name: "c", DType: tensor.Float32, Shape: tensor.Shape{n}, TiedTo: "a"},
	})
	require.NoError(p.t, err)
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(i) + float32(len(name))
	}
	a, _ := sd.Get("a")
	x, err := tensor.FromSlice(on, tensor.Shape{n}, values)
	require.NoError(p.t, err)
	require.NoError(p.t, errors.Join(a.CopyFrom(x), x.Close()))
	sum, err = module.StateDictDigest(p.t.Context(), sd, 0)
	require.NoError(p.t, err)
	_, err = p.Publish(p.t.Context(), name, sd, endpoint.PublishOptions{})
	require.NoError(p.t, errors.Join(err, sd.Close()))
	return sum
}

// acquire attaches the newest version on a device and compares its digest.
func (p *placing) acquire(c *endpoint.Client, name string, on driver.Device, sum module.Digest) *endpoint.Handle {
	p.t.Helper()
	h, err := c.Acquire(p.t.Context(), name, endpoint.AcquireOptions{Device: on, Digest: sum})
	require.NoError(p.t, err)
	for _, s := range h.StateDict().Storages() {
		require.Equal(p.t, on.Info().UUID, s.Memory().Device().Info().UUID)
	}
	return h
}

// placed returns the placements of the newest version of a name.
func (p *placing) placed(name string) []endpoint.PlacementInfo {
	p.t.Helper()
	info, err := p.client().Info(p.t.Context(), name)
	require.NoError(p.t, err)
	return info.Versions[0].Placements
}

// use returns the state of the placements on a device.
func (p *placing) use(dev driver.Device) endpoint.PlacementDevice {
	p.t.Helper()
	info, err := p.ServerInfo(p.t.Context())
	require.NoError(p.t, err)
	for _, d := range info.Placements {
		if d.Device.UUID == dev.Info().UUID.String() {
			return d
		}
	}
	require.Fail(p.t, "no placements on the device")
	return endpoint.PlacementDevice{}
}

// A version is acquired on each device from each origin, with the same bytes, and all clients have one copy.
func TestPlacementOnEachDevice(t *testing.T) { // not parallel: the stand-in counts the objects of the process
	p := newPlacing(t, 64*mib, time.Hour)
	first, second := p.client(), p.client()
	for i, origin := range p.devices {
		name := "m" + origin.Info().String()
		sum := p.publish(name, origin, 300_000)
		for j, on := range p.devices {
			copies := p.use(on).Copies
			a, b := p.acquire(first, name, on, sum), p.acquire(second, name, on, sum)
			if i == j {
				require.Equal(t, copies, p.use(on).Copies, "the version is there already")
			} else {
				require.Equal(t, copies+1, p.use(on).Copies)
			}
			_, tied := a.StateDict().Get("c")
			require.True(t, tied)
			require.Equal(t, [][]string{{"a", "c"}}, a.StateDict().Aliases())
			require.NoError(t, errors.Join(a.Close(), b.Close()))
		}
		list := p.placed(name)
		require.Len(t, list, 2)
		for _, placed := range list {
			require.False(t, placed.Making)
			require.NotEqual(t, origin.Info().UUID.String(), placed.Device.UUID)
			require.EqualValues(t, 1, placed.Hits)
		}
	}
}

// Many clients that ask at the same time wait for one copy.
func TestPlacementMadeOnce(t *testing.T) {
	p := newPlacing(t, 64*mib, time.Hour)
	sum := p.publish("m", p.devices[0], 100_000)
	var work sync.WaitGroup
	for range 8 {
		c := p.client()
		work.Go(func() {
			for range 3 {
				h, err := c.Acquire(t.Context(), "m", endpoint.AcquireOptions{Device: p.devices[1], Digest: sum})
				if err != nil {
					t.Error(err)
					return
				}
				if err := h.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	use := p.use(p.devices[1])
	require.EqualValues(t, 1, use.Copies)
	require.EqualValues(t, 23, use.Hits)
	require.EqualValues(t, 1, use.Placements)
	own, err := p.Acquire(t.Context(), "m", endpoint.AcquireOptions{Device: p.devices[1], Digest: sum})
	require.NoError(t, err)
	require.Equal(t, p.devices[1], own.StateDict().Storages()[0].Memory().Device(), "the owner itself has no other memory")
	require.NoError(t, own.Close())
	require.EqualValues(t, 1, p.use(p.devices[1]).Copies)
}

// A placement that finds no room beside those in use is refused as a limit. When they are unused it replaces them.
func TestPlacementWithoutRoom(t *testing.T) {
	p := newPlacing(t, 3*mib, time.Hour)
	first, second := p.publish("a", p.devices[0], 200_000), p.publish("b", p.devices[0], 200_000)
	c := p.client()
	h := p.acquire(c, "a", p.devices[1], first)
	_, err := c.Acquire(t.Context(), "b", endpoint.AcquireOptions{Device: p.devices[1]})
	require.ErrorIs(t, err, endpoint.ErrLimit)
	require.NoError(t, h.Close())
	require.Eventually(t, func() bool { return p.placed("a")[0].Holders == 0 }, time.Minute, time.Millisecond)
	require.NoError(t, p.acquire(c, "b", p.devices[1], second).Close())
	require.Empty(t, p.placed("a"))
}

// Each call of the driver fails once while a placement is made. The client then has the copy, or an error. Nothing remains
// of a failed copy, and the next one succeeds.
func TestPlacementDriverFails(t *testing.T) {
	p := newPlacing(t, 64*mib, 0)
	c := p.client()
	for _, way := range []struct {
		name     string
		from, to driver.Device
	}{{"host to GPU", p.devices[0], p.devices[1]}, {"GPU to host", p.devices[1], p.devices[0]}, {"GPU to GPU", p.devices[1], p.devices[2]}} {
		t.Run(way.name, func(t *testing.T) {
			for k := int64(1); ; k++ {
				sum := p.publish(way.name, way.from, 40_000) // memory that is not pinned yet
				p.fake.FailCall(k, cu.ERROR_UNKNOWN)
				h, err := c.Acquire(t.Context(), way.name, endpoint.AcquireOptions{Device: way.to})
				failed := p.fake.Failed()
				p.fake.FailNone()
				if err == nil {
					require.NoError(t, module.Verify(t.Context(), h.StateDict(), sum), "after a failed %s", failed)
					require.NoError(t, h.Close())
				}
				require.NoError(t, p.acquire(c, way.name, way.to, sum).Close(), "after a failed %s", failed)
				require.Eventually(t, func() bool { return p.use(way.to).Bytes == 0 }, 30*time.Second, time.Millisecond)
				if failed == "" {
					require.Greater(t, k, int64(3))
					break
				}
			}
		})
	}
}

// Unused placements are freed after their time, and before that for others: the earliest unused first under the budget.
func TestPlacementEvicted(t *testing.T) {
	p := newPlacing(t, 5*mib, time.Hour)
	c := p.client()
	gpu := p.devices[1]
	sums := map[string]module.Digest{}
	for _, name := range []string{"a", "bb", "ccc"} {
		sums[name] = p.publish(name, p.devices[0], 300_000) // 2 MiB with the granularity of the device
		h := p.acquire(c, name, gpu, sums[name])
		require.NoError(t, h.Close())
		require.Eventually(t, func() bool { return !p.placed(name)[0].UnusedSince.IsZero() }, time.Minute, time.Millisecond)
	}
	require.Empty(t, p.placed("a"))
	require.EqualValues(t, 1, p.use(gpu).Evictions)
	held, other := p.acquire(c, "a", gpu, sums["a"]), p.acquire(c, "ccc", gpu, sums["ccc"])
	require.Empty(t, p.placed("bb"))
	_, err := c.Acquire(t.Context(), "bb", endpoint.AcquireOptions{Device: gpu})
	require.ErrorIs(t, err, endpoint.ErrLimit)
	h := p.acquire(c, "bb", p.devices[0], sums["bb"])
	require.NoError(t, errors.Join(h.Close(), held.Close(), other.Close()))
	require.EqualValues(t, 1, fixture.LimitUse(t, p.Server, "placement_bytes").Refused)
}

// Unused placements are freed when the device refuses memory.
func TestPlacementFreedForMemory(t *testing.T) {
	p := newPlacing(t, 1<<40, time.Hour)
	c := p.client()
	gpu := p.devices[1]
	sum := p.publish("m", p.devices[0], 300_000)
	require.NoError(t, p.acquire(c, "m", gpu, sum).Close())
	require.Eventually(t, func() bool { return !p.placed("m")[0].UnusedSince.IsZero() }, time.Minute, time.Millisecond)
	mem, err := gpu.Alloc(255 * mib)
	require.NoError(t, err)
	require.Empty(t, p.placed("m"))
	_, err = c.Acquire(t.Context(), "m", endpoint.AcquireOptions{Device: gpu})
	require.ErrorIs(t, err, driver.ErrOutOfMemory)
	require.NoError(t, mem.Close())
	require.NoError(t, p.acquire(c, "m", gpu, sum).Close())
}

// An owner makes placements only on its configured devices. A client needs the device too, and stays below its limit.
func TestPlacementRefused(t *testing.T) {
	p := newPlacing(t, 64*mib, 0, func(o *endpoint.ServerOptions) {
		o.Placements = o.Placements[1:2]
		o.Limits.PlacementBytes = 3 * mib
	})
	c := p.client()
	sum := p.publish("m", p.devices[0], 300_000)
	p.publish("n", p.devices[0], 300_000)
	_, err := c.Acquire(t.Context(), "m", endpoint.AcquireOptions{Device: p.devices[2]})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "serve --place")
	h := p.acquire(c, "m", p.devices[1], sum)
	_, err = c.Acquire(t.Context(), "n", endpoint.AcquireOptions{Device: p.devices[1]})
	require.ErrorIs(t, err, endpoint.ErrLimit)
	require.NoError(t, h.Close())

	bare, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: p.Socket(), OverSocket: true, Devices: p.devices[:1]})
	require.NoError(t, err)
	_, err = bare.Acquire(t.Context(), "m", endpoint.AcquireOptions{Device: p.devices[1]})
	require.ErrorIs(t, err, endpoint.ErrCapability)
	require.NoError(t, bare.Close())

	for _, wrong := range [][]endpoint.PlacementOptions{{{}}, {{Device: p.devices[0]}, {Device: p.devices[0]}}, {{Device: p.devices[1]}}, {{Device: p.devices[0], Budget: -1}}} {
		_, err = endpoint.NewServer(endpoint.ServerOptions{Local: true, Devices: p.devices[:1], Placements: wrong})
		require.ErrorIs(t, err, endpoint.ErrConfiguration)
	}
}

// A follower with a device uses each version on that device. The version before it stays in use until the copy is complete.
func TestPlacementFollowed(t *testing.T) {
	p := newPlacing(t, 64*mib, 0)
	gpu := p.devices[1]
	first := p.publish("m", p.devices[0], 1000)
	f, err := p.client().Follow(t.Context(), "m", endpoint.FollowOptions{Device: gpu})
	require.NoError(t, err)
	using := func(sum module.Digest) {
		t.Helper()
		require.NoError(t, f.Use(func(v endpoint.ModelVersion) error {
			require.Equal(t, gpu.Info().UUID, v.StateDict.Storages()[0].Memory().Device().Info().UUID)
			return module.Verify(t.Context(), v.StateDict, sum)
		}))
	}
	using(first)
	p.fake.FailEvery("cuMemcpyHtoDAsync", cu.ERROR_UNKNOWN)
	second := p.publish("m", p.devices[0], 2000)
	for f.Status().Refused == nil {
		changed := f.Changed()
		if f.Status().Refused == nil {
			<-changed
		}
	}
	using(first)
	p.fake.FailNone()
	for f.Status().Version != 2 {
		changed := f.Changed()
		if f.Status().Version != 2 {
			<-changed
		}
	}
	using(second)
	require.NoError(t, f.Close())
}

// A store keeps the origin and no placement. A reader of a placement keeps its memory and its lease over a restart of the
// owner, and the next reader gets a new placement.
func TestPlacementAfterRestart(t *testing.T) {
	store := &keptFiles{files: map[string]int{}}
	defer func() { require.NoError(t, store.Remove(store.names()...)) }()
	p := newPlacing(t, 64*mib, time.Hour, func(o *endpoint.ServerOptions) { o.Keep = store })
	gpu := p.devices[1]
	sum := p.publish("m", p.devices[0], 1000)
	before := len(store.names())
	h := p.acquire(p.client(), "m", gpu, sum)
	require.Len(t, store.names(), before)
	server := h.ServerID()
	require.NoError(t, p.Close())
	p.start()
	require.NotEqual(t, server, p.ID())
	require.Eventually(t, func() bool { return h.Leased() && p.heldBy("m") > 0 }, time.Minute, time.Millisecond)
	require.Empty(t, p.placed("m"))
	require.NoError(t, module.Verify(t.Context(), h.StateDict(), sum))
	next := p.acquire(p.client(), "m", gpu, sum)
	require.EqualValues(t, 1, p.use(gpu).Copies)
	require.NoError(t, errors.Join(h.Close(), next.Close()))
}

// heldBy returns the number of sessions that hold the newest version of a name.
func (p *placing) heldBy(name string) int {
	p.t.Helper()
	list, err := p.List(p.t.Context())
	require.NoError(p.t, err)
	for _, m := range list {
		if m.Name == name {
			return m.Versions[0].Sessions
		}
	}
	return 0
}

// The owner computes the digests of tensors on a GPU. A placement has them: the same version is verified on each device.
func TestPlacementDigests(t *testing.T) {
	p := newPlacing(t, 64*mib, time.Hour)
	gpu := p.devices[1]
	sd, err := module.New(gpu, []module.NamedSpec{{Name: "w", DType: tensor.Float32, Shape: tensor.Shape{500_000}}})
	require.NoError(t, err)
	_, err = p.Publish(t.Context(), "m", sd, endpoint.PublishOptions{Digests: true})
	require.NoError(t, errors.Join(err, sd.Close()))
	c := p.client()
	got, err := c.Digests(t.Context(), "m", 0)
	require.NoError(t, err)
	for _, on := range p.devices {
		h, err := c.Acquire(t.Context(), "m", endpoint.AcquireOptions{Device: on, Digest: got.Whole, OwnerDigest: true})
		require.NoError(t, err)
		require.NoError(t, module.Verify(t.Context(), h.StateDict(), got.Whole))
		require.NoError(t, h.Close())
	}
}

// Processes on one GPU hold the same placement. Each of them may be killed: the others keep it, and it is unused after the
// last one.
func TestPlacementOfKilledProcesses(t *testing.T) {
	p := newPlacing(t, 64*mib, time.Hour)
	p.publish("m", p.devices[0], 1000)
	var readers []*fixture.Child
	for range 3 {
		c := fixture.Start(t, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Environ(), fixture.DeviceVariable+"=cuda:0") })
		c.Dial(p.Socket())
		c.Acquire(fixture.Acquisition{Name: "m", Key: "m", Place: true})
		readers = append(readers, c)
	}
	require.EqualValues(t, 1, p.use(p.devices[1]).Copies)
	for i, c := range readers {
		require.Equal(t, 3-i, p.placed("m")[0].Holders)
		c.Kill()
		require.Eventually(t, func() bool { return p.placed("m")[0].Holders == 2-i }, time.Minute, time.Millisecond)
	}
	require.False(t, p.placed("m")[0].UnusedSince.IsZero())
}
