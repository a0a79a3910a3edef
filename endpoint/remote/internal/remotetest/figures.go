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

// Median returns the median.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
