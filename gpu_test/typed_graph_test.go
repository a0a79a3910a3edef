//go:build linux

package gpu_test

import (
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda"
)

func TestGraphOfNodes(t *testing.T) {
	dev := openDevice(t)
	f, s := kernel(t, dev, "saxpy"), stream(t, dev)
	x, y := buffer[float32](t, dev, 4), buffer[float32](t, dev, 4)
	down, err := cuda.NewHostBuffer[float32](dev, 4)
	keep(t, down, err)
	g, err := dev.NewGraph()
	keep(t, g, err)
	one, err := g.AddFill32(x.Memory(), 0, 4, 0x3f800000) // 1.0
	require.NoError(t, err)
	zero, err := g.AddFill32(y.Memory(), 0, 4, 0)
	require.NoError(t, err)
	cfg := cuda.LaunchConfig{Block: cuda.Dim3{X: 4}}
	run, err := g.AddKernel(f, cfg, []cuda.Node{one, zero}, float32(2), x, y, 4)
	require.NoError(t, err)
	copied, err := g.AddCopy(cuda.Copy{Dst: cuda.Operand{Host: down.Memory()}, Src: cuda.Operand{Memory: y.Memory()}, Bytes: 16}, run)
	require.NoError(t, err)
	var calls atomic.Int64
	_, err = g.AddHost(func() { calls.Add(int64(down.Values()[3])) }, copied)
	require.NoError(t, err)
	deps, err := run.Dependencies()
	require.NoError(t, err)
	require.ElementsMatch(t, []cuda.Node{one, zero}, deps)
	released := make(chan struct{})
	require.NoError(t, g.Retain(func() { close(released) }))

	exec, err := g.Instantiate()
	require.NoError(t, err)
	require.NoError(t, exec.Upload(s))
	for range 2 {
		require.NoError(t, exec.Launch(s))
		require.NoError(t, s.Synchronize())
		require.Equal(t, []float32{2, 2, 2, 2}, down.Values())
	}
	require.EqualValues(t, 4, calls.Load())
	require.NoError(t, exec.SetKernel(run, f, cfg, float32(5), x, y, 4))
	require.NoError(t, exec.Launch(s))
	require.NoError(t, s.Synchronize())
	require.Equal(t, []float32{5, 5, 5, 5}, down.Values())
	require.NoError(t, g.Close())
	require.NoError(t, exec.Launch(s), "it does not need the graph")
	require.NoError(t, s.Synchronize())
	require.ErrorIs(t, exec.SetKernel(run, f, cfg, float32(6), x, y, 4), os.ErrClosed, "its node went with the graph")
	require.ErrorIs(t, exec.SetEnabled(run, false), os.ErrClosed)
	require.NoError(t, exec.Close())
	<-released
}

func TestGraphIsUpdated(t *testing.T) {
	dev := openDevice(t)
	s, b := stream(t, dev), buffer[uint32](t, dev, 2)
	capture := func(value uint32, also bool) *cuda.Graph {
		g, err := s.Capture(func() error {
			err := s.Fill32(b.Memory(), 0, 1, value)
			if err == nil && also {
				err = s.Fill32(b.Memory(), 4, 1, value)
			}
			return err
		})
		return keep(t, g, err)
	}
	exec, err := capture(1, false).Instantiate()
	keep(t, exec, err)
	require.NoError(t, exec.Update(capture(2, false)))
	require.NoError(t, exec.Launch(s))
	require.NoError(t, s.Synchronize())
	require.Equal(t, []uint32{2, 0}, values(t, b))
	var u *cuda.UpdateError
	require.ErrorAs(t, exec.Update(capture(3, true)), &u)
}

func TestGraphConditionsOnDevice(t *testing.T) {
	dev := openDevice(t)
	s, b := stream(t, dev), buffer[uint32](t, dev, 4)
	g, err := dev.NewGraph()
	keep(t, g, err)
	for i, value := range []uint32{0, 1} {
		c, err := g.NewCondition(value, true)
		supported(t, err)
		_, body, err := g.AddIf(c)
		supported(t, err)
		_, err = body.AddFill32(b.Memory(), int64(4*i), 1, 7)
		require.NoError(t, err)
	}
	c, err := g.NewCondition(1, true)
	require.NoError(t, err)
	_, bodies, err := g.AddSwitch(c, 2)
	if err == nil { // CUDA 12.8
		for i, body := range bodies {
			require.NoError(t, s.CaptureInto(body, nil, func() error { return s.Fill32(b.Memory(), 8, 1, uint32(10+i)) }))
		}
	}
	exec, err := g.Instantiate()
	keep(t, exec, err)
	require.NoError(t, exec.Launch(s))
	require.NoError(t, s.Synchronize())
	require.Equal(t, []uint32{0, 7}, values(t, b)[:2])
	if len(bodies) > 0 {
		require.EqualValues(t, 11, values(t, b)[2])
	}
}
