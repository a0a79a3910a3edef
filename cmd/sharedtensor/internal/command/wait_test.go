package command

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// Progress is drawn for any numbers that the owner sends.
func TestTaskMeterExtremeNumbers(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		var b bytes.Buffer
		m, now := newTaskMeter(&b), time.Unix(1000, 0)
		m.terminal, m.now = terminal, func() time.Time { return now }
		for _, c := range [][2]int64{{-5, 10}, {20, 10}, {math.MinInt64, -1}, {math.MaxInt64, 1}, {math.MaxInt64, math.MaxInt64}} {
			m.update(endpoint.TaskInfo{State: endpoint.TaskRunning, Done: c[0], Total: c[1], Message: "x"})
			now = now.Add(2 * time.Second)
			time.Sleep(110 * time.Millisecond) // the bar is redrawn no earlier
		}
		m.close()
		require.NotEmpty(t, b.String())
		require.NotRegexp(t, `-\d|[2-9]\d\d%|\d{4,}%`, b.String(), "less than nothing, or more than all")
	}
}
