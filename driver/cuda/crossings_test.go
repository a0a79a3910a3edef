//go:build linux && !cudapurego

package cuda_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// crossings returns the number of calls into C that fn makes. Other goroutines may make calls at the same time, so it is the
// minimum of several runs.
func crossings(t *testing.T, fn func() error) int64 {
	t.Helper()
	least := int64(1 << 62)
	for range 3 {
		before := runtime.NumCgoCall()
		require.NoError(t, fn())
		least = min(least, runtime.NumCgoCall()-before)
		time.Sleep(time.Millisecond)
	}
	return least
}

// A typed call of one function of the driver enters C once. Setting the context and restoring the previous one are part of it.
func TestTypedCallsCrossOnce(t *testing.T) {
	d := openDevice(t, 0)
	s, other := newStream(t, d), newStream(t, d)
	m, n, h := alloc(t, d, 4096), alloc(t, d, 4096), host(t, d, 4096)
	e, err := d.NewEvent(cuda.EventOptions{Timing: true})
	keep(t, e, err)
	f := function(t, loadKernels(t, d), "saxpy")
	k, err := cuda.KernelOf[struct {
		A    float32
		X, Y *cuda.Memory
		N    uint32
	}](f)
	require.NoError(t, err)
	pool, err := d.DefaultPool()
	keep(t, pool, err)
	managed, err := d.AllocManaged(1 << 16)
	keep(t, managed, err)
	g, err := s.Capture(func() error { return s.Fill8(m, 0, 16, 1) })
	keep(t, g, err)
	x, err := g.Instantiate()
	keep(t, x, err)
	granularity, err := d.Granularity(cuda.FileHandle, false)
	require.NoError(t, err)
	a, err := d.CreateAllocation(granularity, cuda.FileHandle)
	keep(t, a, err)
	r, err := d.ReserveAddresses(granularity, 0)
	keep(t, r, err)
	require.NoError(t, r.Map(0, a, granularity))
	cfg := cuda.LaunchConfig{Block: cuda.Dim3{X: 1}, Stream: s}
	withAttributes := cfg
	withAttributes.Attributes = []cuda.LaunchAttribute{cuda.LaunchPriority(0)}
	buf := make([]byte, 64)
	var free, total uint64

	for name, fn := range map[string]func() error{
		"Launch":            func() error { return f.Launch(cfg, float32(1), m, n, uint32(0)) },
		"Launch, attribute": func() error { return f.Launch(withAttributes, float32(1), m, n, uint32(0)) },
		"Kernel.Launch": func() error {
			return k.Launch(cfg, struct {
				A    float32
				X, Y *cuda.Memory
				N    uint32
			}{1, m, n, 0})
		},
		"CopyToDevice": func() error { return s.CopyToDevice(m, 0, h, 0, 64) },
		"CopyToHost":   func() error { return s.CopyToHost(h, 0, m, 0, 64) },
		"CopyOnDevice": func() error { return s.CopyOnDevice(n, 0, m, 0, 64) },
		"CopyBox": func() error {
			return s.CopyBox(cuda.BoxCopy{Dst: cuda.Box{Operand: cuda.Operand{Memory: n}}, Src: cuda.Box{Operand: cuda.Operand{Memory: m}}, Width: 8, Height: 2})
		},
		"CopyBatch": func() error {
			return s.CopyBatch([]cuda.Copy{{Dst: cuda.Operand{Memory: n}, Src: cuda.Operand{Memory: m}, Bytes: 8}})
		},
		"Fill32":       func() error { return s.Fill32(m, 0, 4, 1) },
		"WriteValue64": func() error { return s.WriteValue64(m, 0, 1) },
		"WaitValue32":  func() error { return s.WaitValue32(m, 0, 0) },
		"MemOps":       func() error { return s.MemOps(cuda.Write32(m, 0, 1), cuda.Write32(m, 4, 1)) },
		"Prefetch":     func() error { return s.Prefetch(managed, 0, 4096, d.Location()) },
		"Advise":       func() error { return managed.Advise(0, 4096, cuda.ReadMostly, cuda.Location{}) },
		"Record":       func() error { return e.Record(s) },
		"Done":         func() error { _, err := e.Done(); return err },
		"Synchronize":  func() error { return s.Synchronize() },
		"Stream.Wait":  func() error { return other.Wait(e) },
		"Idle":         func() error { _, err := s.Idle(); return err },
		"LaunchHost":   func() error { return s.LaunchHost(func() {}) },
		"GraphExec":    func() error { return x.Launch(s) },
		"Upload":       func() error { return x.Upload(s) },
		"ReadAt":       func() error { _, err := m.ReadAt(buf, 0); return err },
		"SetAccess":    func() error { return r.SetAccess(d, 0, granularity, cuda.ReadWrite) },
		"Trim":         func() error { return pool.Trim(0) },
		"Threshold":    func() error { return pool.SetReleaseThreshold(0) },
		"Attribute":    func() error { _, err := f.Attribute(cu.FUNC_ATTRIBUTE_NUM_REGS); return err },
		"Occupancy":    func() error { _, err := f.MaxActiveBlocks(32, 0); return err },
		"MemoryInfo":   func() error { _, _, err := d.MemoryInfo(); return err },
		"Device.Call":  func() error { return d.Call(func(c cu.Context) error { return c.MemGetInfo(&free, &total).Err() }) },
	} {
		require.EqualValues(t, 1, crossings(t, fn), name)
	}
	require.NoError(t, s.Synchronize())
	require.EqualValues(t, 2, crossings(t, func() error { return d.Do(func() error { return nil }) }), "setting and restoring the context")
	require.EqualValues(t, 4, crossings(t, func() error { _, err := m.WriteAt(buf, 0); return err }),
		"the copy, the wait, and the context: with default streams by thread, one thread makes both calls")
}

// Typed calls do not depend on the thread: goroutines that change threads between calls use the right contexts.
func TestTypedCallsOnAnyThread(t *testing.T) {
	d0, d1 := openDevice(t, 0), openDevice(t, 1)
	m0, m1 := alloc(t, d0, 4096), alloc(t, d1, 4096)
	done := make(chan error)
	for i := range 8 {
		go func() {
			d, m := d0, m0
			if i%2 == 1 {
				d, m = d1, m1
			}
			for range 200 {
				s, err := d.NewStream(cuda.StreamOptions{})
				if err == nil {
					err = s.Fill8(m, int64(16*i), 16, byte(i))
				}
				runtime.Gosched()
				if err == nil {
					err = s.Synchronize()
				}
				if err == nil {
					err = s.Close()
				}
				if err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 8 {
		require.NoError(t, <-done)
	}
	buf := make([]byte, 128)
	for i := range 8 {
		m := m0
		if i%2 == 1 {
			m = m1
		}
		_, err := m.ReadAt(buf, 0)
		require.NoError(t, err)
		require.Equal(t, byte(i), buf[16*i])
		require.Equal(t, byte(i), buf[16*i+15])
	}
}
