package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// addShort adds n calls of one microsecond.
func (p *peakEWMA) addShort(n int) {
	for range n {
		p.Add(time.Microsecond)
	}
}

func TestPeakIgnoresLongCallAmongShort(t *testing.T) {
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
	var p peakEWMA
	p.Add(5 * time.Millisecond)
	require.Equal(t, 5*time.Millisecond, p.Get())
}
