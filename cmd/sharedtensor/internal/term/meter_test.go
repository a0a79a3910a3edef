package term

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMeterPlainLines(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	now := time.Unix(1000, 0)
	m := NewMeter(&b, "loading", "loaded", "llm\n")
	m.now = func() time.Time { return now }
	m.Update(0, 4<<30)
	for i := range 40 { // ten per second
		now = now.Add(100 * time.Millisecond)
		m.Update(int64(i+1)*100<<20, 4<<30)
	}
	now = now.Add(500 * time.Millisecond)
	m.Update(4<<30, 4<<30)
	m.End(nil)
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	require.Len(t, lines, 5, b.String())
	require.Equal(t, `loading llm\n: 1000 MiB of 4.0 GiB, 24%, 1000 MiB/s, 3.00s left`, lines[0])
	require.Equal(t, `loaded llm\n: 4.0 GiB in 4.50s, 910 MiB/s`, lines[4])
}

func TestMeterFailure(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	m := NewMeter(&b, "loading", "loaded", "llm")
	m.End(nil)
	m.Update(0, 10)
	m.End(errors.New("no"))
	m.Close()
	require.Empty(t, b.String())
}

func TestMeterZeroBytes(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	m := NewMeter(&b, "loading", "loaded", "empty")
	m.Update(0, 0)
	m.End(nil)
	require.Regexp(t, `^loaded empty: 0 B in `, b.String())
}

func TestMeterBar(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	m := NewMeter(&b, "loading", "loaded", "llm")
	m.terminal = true
	m.Update(0, 1000)
	require.Contains(t, b.String(), "loading llm")
	m.Update(1000, 1000)
	m.End(nil)
	require.Regexp(t, `loaded llm: 1000 B in .*\n$`, b.String())
	b.Reset()
	m = NewMeter(&b, "loading", "loaded", "llm")
	m.terminal = true
	m.Update(0, 1000)
	m.Update(10, 1000)
	m.End(errors.New("no"))
	require.NotContains(t, b.String(), "\n", "the error has the line for itself")
}

// Remaining times and percentages stay within their ranges for any numbers from a file or a peer.
func TestTimeLeftIsClamped(t *testing.T) {
	t.Parallel()
	require.Equal(t, 3*time.Second, timeLeft(time.Second, 25, 100))
	for _, c := range [][3]int64{{0, 1, 2}, {1, 0, 2}, {1, -5, 2}, {1, 2, 2}, {1, 3, 2}, {1, 5, math.MinInt64}, {int64(time.Hour), 1, math.MaxInt64}} {
		require.Zero(t, timeLeft(time.Duration(c[0]), c[1], c[2]), c)
	}
	for _, c := range [][3]int64{{50, 100, 50}, {math.MaxInt64, 1, 100}, {-1, 100, 0}, {1, -1, 0}, {math.MinInt64, math.MinInt64, 0}, {math.MaxInt64, math.MaxInt64, 100}} {
		require.EqualValues(t, c[2], Portion(c[0], c[1]), c)
	}
	for _, terminal := range []bool{false, true} {
		var b bytes.Buffer
		now := time.Unix(1000, 0)
		m := NewMeter(&b, "hashing", "hashed", "m")
		m.terminal, m.now = terminal, func() time.Time { return now }
		for _, c := range [][2]int64{{0, math.MinInt64}, {-1, 5}, {math.MaxInt64, 1}, {1, math.MaxInt64}, {0, 0}} {
			m.Update(c[0], c[1])
			now = now.Add(2 * time.Second)
		}
		m.End(nil)
		require.NotContains(t, b.String(), "ns left")
	}
}
