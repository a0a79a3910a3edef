package command

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// D13: the progress of a task is drawn whatever numbers the owner sends.
func TestTaskMeterOfHostileNumbers(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		var b bytes.Buffer
		m := newTaskMeter(&b)
		m.terminal = terminal
		for _, c := range [][2]int64{{-5, 10}, {20, 10}, {math.MinInt64, -1}, {math.MaxInt64, math.MaxInt64}} {
			m.update(endpoint.TaskInfo{State: endpoint.TaskRunning, Done: c[0], Total: c[1]})
		}
		m.close()
		require.NotEmpty(t, b.String())
	}
}
