package modelwire_test

import (
	"bufio"
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

// BenchmarkApplyDelta makes the next version of 64 MiB of bfloat16 in which 1 % of the elements have changed: it copies the
// base and applies the delta. "ratio" is its speed relative to copying alone, in the same run. "encode-GB/s" is the
// speed of encoding.
//
//	go test -run '^$' -bench ApplyDelta -benchtime 20x ./modelwire
func BenchmarkApplyDelta(b *testing.B) {
	const n = 64 << 20
	base := random(n, 1)
	next := changed(base, 2, 100)
	begin := time.Now()
	text := encode(b, base, next, 2, 0)
	encoded := time.Since(begin)
	data := make([]byte, n)
	copy(data, base)
	var copying, applying time.Duration
	for b.Loop() {
		begin := time.Now()
		copy(data, base)
		copied := time.Now()
		copy(data, base)
		_, err := modelwire.ApplyDelta(data, 2, 0, bufio.NewReaderSize(bytes.NewReader(text), 256<<10))
		applying += time.Since(copied)
		copying += copied.Sub(begin)
		require.NoError(b, err)
	}
	require.True(b, bytes.Equal(next, data))
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(n)*float64(b.N)/1e9/applying.Seconds(), "GB/s")
	b.ReportMetric(float64(n)/1e9/encoded.Seconds(), "encode-GB/s")
	b.ReportMetric(float64(copying)/float64(applying), "ratio")
	b.ReportMetric(100*float64(len(text))/n, "percent")
}
