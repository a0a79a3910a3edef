package remotetest

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Load is the result of clients that send requests at once.
type Load struct {
	Clients  int
	Rate     float64 // requests per second of all clients
	P50, P99 time.Duration
}

// Run runs clients for a duration. connect returns the request of one client, which has a connection of its own. Requests
// of the first tenth of the time, in which connections are made, are not counted. An error of a request fails the test.
func Run(t testing.TB, clients int, lasts time.Duration, connect func() (request func() error)) Load {
	t.Helper()
	requests := make([]func() error, clients)
	for i := range requests {
		requests[i] = connect()
	}
	times := make([][]time.Duration, clients)
	errs := make([]error, clients)
	var running sync.WaitGroup
	begin := time.Now()
	counted, end := begin.Add(lasts/10), begin.Add(lasts)
	for i, request := range requests {
		running.Go(func() {
			for {
				start := time.Now()
				if start.After(end) {
					return
				}
				if errs[i] = request(); errs[i] != nil {
					return
				}
				if start.After(counted) {
					times[i] = append(times[i], time.Since(start))
				}
			}
		})
	}
	running.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	all := slices.Concat(times...)
	require.NotEmpty(t, all)
	slices.Sort(all)
	return Load{clients, float64(len(all)) / time.Since(counted).Seconds(), all[len(all)/2], all[len(all)*99/100]}
}

// Report adds the result to a benchmark. name is the server.
func (l Load) Report(b *testing.B, name string) {
	b.Helper()
	b.ReportMetric(l.Rate, name+"-req/s")
	b.ReportMetric(float64(l.P50.Microseconds())/1000, name+"-p50-ms")
	b.ReportMetric(float64(l.P99.Microseconds())/1000, name+"-p99-ms")
}

// Curve contains the numbers of clients of a curve.
var Curve = []int{1, 4, 16, 64, 256, 1000}
