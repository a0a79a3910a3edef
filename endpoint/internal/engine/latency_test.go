package engine

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// A bucket holds more than 2³² runs. A busy endpoint overflowed 32 bits after an hour and a half.
func TestLatencyCountExceeds32Bits(t *testing.T) {
	t.Parallel()
	var l latency
	l.add(100, false)
	l.row(bucketOf(100) / latencySteps)[bucketOf(100)%latencySteps].Add(math.MaxUint32)
	l.add(1e6, false)
	require.Equal(t, []time.Duration{bucketLimit(bucketOf(100))}, l.Quantiles(0.99))
}

func TestLatencyAllocatesUsedRows(t *testing.T) {
	require.Equal(t, latencyPowers*latencySteps-1, bucketOf(math.MaxInt64), "there is room for all, and no more")
	var l latency
	for _, d := range []time.Duration{600, 700, 1000} {
		l.add(d, false)
	}
	require.EqualValues(t, 2300, l.Total.Load())
	rows := 0
	for i := range l.powers {
		if l.powers[i].Load() != nil {
			rows++
		}
	}
	require.Equal(t, 1, rows)
	require.Zero(t, testing.AllocsPerRun(100, func() { l.add(900, false) }))
	var work sync.WaitGroup
	for range 4 {
		work.Go(func() {
			for range 100 {
				l.add(1<<20, false)
			}
		})
	}
	work.Wait()
	require.EqualValues(t, 400, l.row(bucketOf(1<<20) / latencySteps)[0].Load(), "the row is made once")
}

func TestLatencyQuantiles(t *testing.T) {
	t.Parallel()
	l := new(latency)
	require.Equal(t, []time.Duration{0, 0}, l.Quantiles(0.5, 0.99))
	random := rand.New(rand.NewPCG(1, 2))
	var all []time.Duration
	for range 10_000 {
		d := time.Duration(random.ExpFloat64() * float64(time.Millisecond))
		all = append(all, d)
		l.add(d, false)
	}
	slices.Sort(all)
	parts := []float64{0.01, 0.5, 0.9, 0.99, 1}
	for i, got := range l.Quantiles(parts...) {
		want := all[max(int(parts[i]*float64(len(all)))-1, 0)]
		require.GreaterOrEqual(t, got, want, parts[i])
		require.LessOrEqual(t, float64(got), float64(want)*1.126, parts[i])
	}
	for _, ns := range []uint64{0, 1, 7, 8, 9, 15, 16, 1000, 1 << 40, 1<<63 - 1} {
		b := bucketOf(ns)
		require.GreaterOrEqual(t, bucketLimit(b), time.Duration(ns))
		if b > 0 {
			require.Less(t, bucketLimit(b-1), time.Duration(ns))
		}
	}
	l.add(-time.Second, true) // the clock was set back
	require.EqualValues(t, 1, l.Failed.Load())
	require.EqualValues(t, 10_001, l.Count.Load())
}

// addShort adds n calls of one microsecond.
func (p *peakEWMA) addShort(n int) {
	for range n {
		p.Add(time.Microsecond)
	}
}

func TestPeakIgnoresLongCallAmongShort(t *testing.T) {
	t.Parallel()
	var p peakEWMA
	require.Equal(t, unmeasured, p.Get())
	p.addShort(100)
	require.Less(t, p.Get(), 10*time.Microsecond)
	for range 10 {
		p.Add(5 * time.Millisecond)
		require.Less(t, p.Get(), 10*time.Microsecond)
		p.addShort(shortRun)
	}
}

func TestPeakCountsFrequentLongCalls(t *testing.T) {
	t.Parallel()
	var p peakEWMA
	p.addShort(100)
	p.Add(time.Millisecond)
	p.addShort(shortRun - 1)
	p.Add(2 * time.Millisecond)
	require.Equal(t, 2*time.Millisecond, p.Get(), "the second one within so many calls")
	p.addShort(8)
	require.Greater(t, p.Get(), 100*time.Microsecond, "it comes down slowly")
	p.Add(3 * time.Millisecond)
	require.Equal(t, 3*time.Millisecond, p.Get())
}

func TestPeakCountsFirstLongCall(t *testing.T) {
	t.Parallel()
	var p peakEWMA
	p.Add(5 * time.Millisecond)
	require.Equal(t, 5*time.Millisecond, p.Get())
}

// Each run is in the count of its duration, whatever the buckets of the quantiles are.
func TestDurations(t *testing.T) {
	t.Parallel()
	l := new(latency)
	require.Empty(t, l.Durations())
	want := make([]uint64, message.DurationCounts)
	for power := range 63 {
		for _, ns := range []uint64{1<<power - 1, 1 << power, 1<<power + 1} {
			l.add(time.Duration(ns), false)
			i := 0
			for i < 24 && ns >= 8192<<i {
				i++
			}
			want[i]++
		}
	}
	require.Equal(t, want, l.Durations())
	require.Equal(t, l.Count.Load(), sumOf(want))
	short := new(latency)
	short.add(20*time.Microsecond, false)
	require.Equal(t, []uint64{0, 0, 1}, short.Durations(), "zeros at the end are left out")
}

func sumOf(list []uint64) (sum uint64) {
	for _, n := range list {
		sum += n
	}
	return sum
}
