package cuda_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// nil2 returns a file that is no memory.
func nil2(t testing.TB) *os.File {
	f, err := os.Open(os.DevNull)
	return keep(t, f, err)
}

func TestMultiprocessors(t *testing.T) {
	d := openDevice(t, 0)
	all, err := d.Multiprocessors()
	require.NoError(t, err)
	require.Equal(t, 8, all.Count())
	parts, rest, err := all.Split(2, 3)
	require.NoError(t, err)
	require.Len(t, parts, 2)
	require.Equal(t, 4, parts[0].Count(), "rounded up")
	require.Equal(t, 4, parts[1].Count())
	require.Zero(t, rest.Count())
	parts, rest, err = all.Split(99, 3)
	require.NoError(t, err)
	require.Len(t, parts, 2, "no more than there are")

	green, err := parts[0].NewContext()
	require.NoError(t, err)
	mine, err := green.Multiprocessors()
	require.NoError(t, err)
	require.Equal(t, 4, mine.Count())
	m := alloc(t, d, 64)
	s, err := green.NewStream(cuda.StreamOptions{Priority: -1})
	require.NoError(t, err)
	fill := function(t, loadKernels(t, green), "fill")
	require.NoError(t, fill.Launch(cuda.LaunchConfig{Stream: s}, m, uint32(2), uint32(1)))
	require.NoError(t, s.Synchronize())
	require.EqualValues(t, 2, words(t, m, 1)[0], "memory is of the device")
	_, err = green.NewStream(cuda.StreamOptions{Blocking: true})
	require.ErrorIs(t, err, driver.ErrInvalid)
	other := function(t, loadKernels(t, d), "fill")
	require.Error(t, other.Launch(cuda.LaunchConfig{Stream: s}, m, uint32(2), uint32(1)), "a function of another context")
	require.NoError(t, s.Close())
	require.NoError(t, green.Close())

	for _, split := range [][2]int{{0, 1}, {1, -1}, {1, 9}} {
		_, _, err = all.Split(split[0], split[1])
		require.ErrorIs(t, err, driver.ErrInvalid)
	}
	_, err = rest.NewContext()
	require.ErrorIs(t, err, driver.ErrInvalid, "no multiprocessors")
	_, _, err = cuda.Multiprocessors{}.Split(1, 1)
	require.ErrorIs(t, err, driver.ErrInvalid)
}

// A context of some multiprocessors keeps the primary context.
func TestGreenContextOutlivesDevice(t *testing.T) {
	startFake(t)
	d, err := cuda.Open(0)
	require.NoError(t, err)
	all, err := d.Multiprocessors()
	require.NoError(t, err)
	green, err := all.NewContext()
	require.NoError(t, err)
	require.NoError(t, d.Close())
	m := alloc(t, green, 16)
	require.NoError(t, m.Fill(0, 16, 1))
	require.NoError(t, green.Close())
	require.NoError(t, m.Fill(0, 16, 1))
	_, err = all.NewContext()
	require.ErrorIs(t, err, os.ErrClosed)
}

func TestOccupancyOfClustersAndSharedMemory(t *testing.T) {
	d := openDevice(t, 0)
	f := function(t, loadKernels(t, d), "saxpy")
	var asked []int
	threads, blocks, err := f.SuggestBlockFunc(func(threads int) uint64 {
		asked = append(asked, threads)
		require.Equal(t, cu.ERROR_NOT_PERMITTED, cu.StreamQuery(0), "a callback must not call CUDA")
		return uint64(threads) * 300
	}, 0)
	require.NoError(t, err)
	require.Less(t, threads, 1024)
	require.Positive(t, blocks)
	require.Contains(t, asked, threads)
	_, _, err = f.SuggestBlockFunc(nil, 0)
	require.ErrorIs(t, err, driver.ErrInvalid)
	shared, err := f.AvailableSharedBytes(2, 256)
	require.NoError(t, err)
	n, err := f.MaxActiveBlocks(256, shared)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	_, err = f.AvailableSharedBytes(99, 1024)
	require.ErrorIs(t, err, driver.ErrInvalid)

	cfg := cuda.LaunchConfig{Grid: cuda.Dim3{X: 4}, Block: cuda.Dim3{X: 1024}}
	size, err := f.MaxClusterBlocks(cfg)
	require.NoError(t, err)
	require.Equal(t, 8, size)
	require.NoError(t, f.AllowLargeClusters())
	size, err = f.MaxClusterBlocks(cfg)
	require.NoError(t, err)
	require.Equal(t, 16, size)
	_, err = f.MaxActiveClusters(cfg)
	require.Error(t, err, "no size of a cluster")
	cfg.Attributes = []cuda.LaunchAttribute{cuda.ClusterSize(cuda.Dim3{X: 4})}
	n, err = f.MaxActiveClusters(cfg)
	require.NoError(t, err)
	require.Equal(t, 4, n, "2 blocks on each of 8 multiprocessors, 4 in a cluster")
}

func TestProcessCheckpoint(t *testing.T) {
	if os.Getenv(childVariable) == "checkpoint" {
		d := openDevice(t, 0)
		m := alloc(t, d, 16)
		os.Stdout.WriteString("ready\n")
		buf := make([]byte, 1)
		os.Stdin.Read(buf)
		require.NoError(t, m.Fill(0, 16, 1)) // waits while the process is locked
		os.Stdout.WriteString("done\n")
		return
	}
	d := openDevice(t, 0)
	cmd := selfCommand("-test.run="+pattern(t.Name()), "-test.count=1")
	cmd.Env = append(os.Environ(), childVariable+"=checkpoint")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	buf := make([]byte, 6)
	_, err = out.Read(buf)
	require.NoError(t, err)
	p := cuda.Process{PID: cmd.Process.Pid}
	state := func(want cuda.ProcessState) {
		t.Helper()
		s, err := p.State()
		require.NoError(t, err)
		require.Equal(t, want, s)
	}
	state(cuda.ProcessRunning)
	require.Error(t, p.Checkpoint(), "not locked")
	require.Error(t, p.Unlock())
	require.NoError(t, p.Lock(time.Second))
	state(cuda.ProcessLocked)
	require.Error(t, p.Lock(0), "locked already")
	_, err = in.Write([]byte{1})
	require.NoError(t, err)
	require.NoError(t, p.Checkpoint())
	state(cuda.ProcessCheckpointed)
	require.Error(t, p.Unlock(), "not restored")
	tid, err := p.RestoreThread()
	require.NoError(t, err)
	require.Positive(t, tid)
	require.Error(t, p.Restore(map[driver.UUID]driver.UUID{d.Info().UUID: {1}}), "no such device")
	require.NoError(t, p.Restore(map[driver.UUID]driver.UUID{d.Info().UUID: d.Info().UUID}))
	state(cuda.ProcessLocked)
	require.NoError(t, p.Unlock())
	_, err = out.Read(buf)
	require.NoError(t, err)
	require.Equal(t, "done\n", string(buf[:5]), "its call continued")
	require.NoError(t, cmd.Wait())

	require.ErrorIs(t, cuda.Process{PID: -1}.Unlock(), driver.ErrInvalid)
	require.ErrorIs(t, p.Lock(-1), driver.ErrInvalid)
	require.Error(t, cuda.Process{PID: cmd.Process.Pid}.Lock(0), "the process is gone")
	require.Equal(t, "checkpointed", cuda.ProcessCheckpointed.String())
}
