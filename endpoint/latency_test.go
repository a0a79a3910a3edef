package endpoint

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A bucket of 32 bits was back at nothing after 4.3 billion runs, which is an hour and a half of an endpoint in a tight loop.
func TestLatencyCountsFurtherThan32Bits(t *testing.T) {
	var l latency
	l.add(100, false)
	l.row(bucketOf(100) / latencySteps)[bucketOf(100)%latencySteps].Add(math.MaxUint32)
	l.add(1e6, false)
	require.Equal(t, []time.Duration{bucketLimit(bucketOf(100))}, l.quantiles(0.99))
}

func TestLatencyTakesMemoryForWhatItSaw(t *testing.T) {
	require.Equal(t, latencyPowers*latencySteps-1, bucketOf(math.MaxInt64), "there is room for all, and no more")
	var l latency
	for _, d := range []time.Duration{600, 700, 1000} {
		l.add(d, false)
	}
	require.EqualValues(t, 2300, l.total.Load())
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
