package remotetest

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Rounds runs ours and floor alternately, and reports their medians and the ratio.
func Rounds(b *testing.B, unit string, value func(time.Duration) float64, ours, floor func() error) {
	b.Helper()
	require.NoError(b, ours()) // warm up: excludes the cost of first use
	require.NoError(b, floor())
	timed := func(f func() error) float64 {
		begin := time.Now()
		require.NoError(b, f())
		return value(time.Since(begin))
	}
	var mine, least, ratios []float64
	b.ResetTimer()
	for range b.N {
		least = append(least, timed(floor))
		mine = append(mine, timed(ours))
		ratios = append(ratios, mine[len(mine)-1]/least[len(least)-1])
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(Median(mine), unit)
	b.ReportMetric(Median(least), "floor-"+unit)
	b.ReportMetric(Median(ratios), "ratio")
}

// Throughput measures the throughput of ours and of the floors alternately, and reports the medians and their ratios. The
// first round is a warm-up and is not counted. undo is not measured.
func Throughput(b *testing.B, bytes int64, ours func(round int) (undo func() error, err error), floors map[string]func() error) {
	b.Helper()
	timed := func(do func() error) float64 {
		begin := time.Now()
		require.NoError(b, do())
		return float64(bytes) / 1e9 / time.Since(begin).Seconds()
	}
	var mine []float64
	least, ratios := map[string][]float64{}, map[string][]float64{}
	for round := range b.N + 1 {
		if round == 1 {
			b.ResetTimer()
		}
		speed := map[string]float64{}
		for name, floor := range floors {
			speed[name] = timed(floor)
		}
		var undo func() error
		here := timed(func() (err error) { undo, err = ours(round); return err })
		require.NoError(b, undo())
		if round == 0 {
			continue
		}
		mine = append(mine, here)
		for name, floor := range speed {
			least[name], ratios[name] = append(least[name], floor), append(ratios[name], here/floor)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(Median(mine), "GB/s")
	for name := range floors {
		b.ReportMetric(Median(least[name]), "floor"+name+"-GB/s")
		b.ReportMetric(Median(ratios[name]), "ratio"+name)
	}
}

// Median returns the median.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
