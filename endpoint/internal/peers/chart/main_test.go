package main

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const output = `goos: linux
BenchmarkCall/peer=endpoint-2  	  148116	      8100 ns/op	        11.00 allocations/op	      7100 p50-ns	     20000 p99-ns
BenchmarkCall/peer=endpoint-2  	  148116	      8100 ns/op	        11.00 allocations/op	      9100 p50-ns	     20000 p99-ns
BenchmarkCall/peer=endpoint-2  	  148116	      8100 ns/op	        11.00 allocations/op	      8100 p50-ns	     20000 p99-ns
BenchmarkCall/peer=iceoryx2-call-spin-2  	  148116	      2700 ns/op	      2700 p50-ns	     20000 p99-ns
BenchmarkCallers/peer=endpoint-2 	  100000	     10000 ns/op
BenchmarkCallers/peer=grpc-2 	  100000	     50000 ns/op
BenchmarkArgument/bytes=1073741824/peer=endpoint-2 	  100	     24000 ns/op
BenchmarkArgument/bytes=1073741824/peer=grpc-2 	  1	     13000000000 ns/op
BenchmarkResult/bytes=1048576/peer=reused-2 	  100	     24000 ns/op	 15000 p50-ns
PASS
`

// The page has the medians, ranges and ratios of the runs, and leaves out what has no rival.
func TestPage(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, write(strings.NewReader(output), dir, "a machine", "2026-11-28"))
	page, err := os.ReadFile(filepath.Join(dir, "benchmarks.md"))
	require.NoError(t, err)
	for _, want := range []string{
		"| sharedtensor | 8.1 µs | 7.1 µs – 9.1 µs | 1 |\n| iceoryx2, both sides spin | 2.7 µs |  | 0.33 |",
		"| sharedtensor | 100,000/s |  | 1 |\n| grpc-go, Unix socket | 20,000/s |  | 5 |",
		"| sharedtensor | 24 µs |  | 1 |\n| grpc-go, Unix socket | 13 s |  | 542,000 |",
		"a machine, 2026-11-28",
	} {
		require.Contains(t, string(page), want)
	}
	require.NotContains(t, string(page), "Result of 1 MiB")
}

// The chart is XML, and no bar leaves it.
func TestChart(t *testing.T) {
	r, err := readResults(strings.NewReader(output))
	require.NoError(t, err)
	d := xml.NewDecoder(strings.NewReader(renderChart(arrange(r))))
	bars := 0
	for {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		if start, ok := token.(xml.StartElement); ok && start.Name.Local == "rect" {
			bars++
		}
	}
	require.Equal(t, 6, bars)
}

// Input without benchmarks writes nothing.
func TestEmptyInput(t *testing.T) {
	dir := t.TempDir()
	require.ErrorContains(t, write(strings.NewReader("PASS\n"), dir, "m", "d"), "no benchmark")
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, list)
}
