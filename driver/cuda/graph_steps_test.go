package cuda_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda"
)

// decodeLoop is a graph whose kernel writes to one of two buffers in turn, like a loop that decodes tokens.
type decodeLoop struct {
	x       *cuda.GraphExec
	s       *cuda.Stream
	n       cuda.Node
	fill    *cuda.Function
	buffers [2]*cuda.Memory
}

func newDecodeLoop(tb testing.TB) *decodeLoop {
	tb.Helper()
	d := openDevice(tb, 0)
	l := &decodeLoop{s: newStream(tb, d), fill: function(tb, loadKernels(tb, d), "fill")}
	for i := range l.buffers {
		l.buffers[i] = alloc(tb, d, 64)
	}
	g, err := d.NewGraph()
	keep(tb, g, err)
	l.n, err = g.AddKernel(l.fill, cuda.LaunchConfig{}, nil, l.buffers[0], uint32(0), uint32(1))
	require.NoError(tb, err)
	l.x, err = g.Instantiate()
	keep(tb, l.x, err)
	return l
}

// step replaces the arguments and launches the graph. It waits for the stream every 64 steps.
func (l *decodeLoop) step(i int) error {
	if err := l.x.SetKernel(l.n, l.fill, cuda.LaunchConfig{}, l.buffers[i%2], uint32(i), uint32(1)); err != nil {
		return err
	}
	if err := l.x.Launch(l.s); err != nil || i%64 != 63 {
		return err
	}
	return l.s.Synchronize()
}

// The memory of a loop that replaces arguments and launches is constant: objects that the graph uses, objects of the
// driver, and bytes of the heap.
func TestStepsOfAGraphKeepMemoryConstant(t *testing.T) {
	fake := startFake(t)
	l := newDecodeLoop(t)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	run := func(from, to int) {
		for i := from; i < to; i++ {
			require.NoError(t, l.step(i))
		}
		require.NoError(t, l.s.Synchronize())
	}
	run(0, 1000)
	live, objects, before := fake.Live(), cuda.GraphObjects(l.x), heap()
	run(1000, 6000)
	require.Equal(t, live, fake.Live())
	require.Equal(t, objects, cuda.GraphObjects(l.x))
	require.Less(t, heap(), before+5000*8, "less than one pointer for each step")
}

// BenchmarkGraphSteps reports the time of a step at the beginning and at the end of the loop.
func BenchmarkGraphSteps(b *testing.B) {
	l := newDecodeLoop(b)
	tenth := max(b.N/10, 1)
	var first, last time.Duration
	start := time.Now()
	for i := range b.N {
		if i == b.N-tenth {
			last = time.Since(start)
		}
		if err := l.step(i); err != nil {
			b.Fatal(err)
		}
		if i == tenth-1 {
			first = time.Since(start)
		}
	}
	last = time.Since(start) - last
	b.ReportMetric(float64(first.Nanoseconds())/float64(tenth), "first-tenth-ns/step")
	b.ReportMetric(float64(last.Nanoseconds())/float64(tenth), "last-tenth-ns/step")
}
