package mirror_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// BenchmarkFiguresHosts mirrors one model to 1, 2, 4 and 8 hosts at once, in network namespaces with links limited to 1
// Gbit/s or SHAREDTENSOR_MBIT. The transfer of a model takes four seconds of a link, or SHAREDTENSOR_SECONDS.
//
//	SHAREDTENSOR_MBIT=200 go test -run '^$' -bench FiguresHosts -benchtime 3x ./mirror
//
// "N-s" is the median time for N hosts, from the start of the first gateway until the last one has the version. "N/1"
// is the median ratio of this time to the time of one host in the same round. "N-processors" is the number of this
// machine's CPUs in use meanwhile, including unrelated work; if that is all of them, the CPUs and not the links limit
// the figure. "N-s/GB" is the CPU time of all gateways, including the source's and the kernel's work for them, per GB
// received by a host.
func BenchmarkFiguresHosts(b *testing.B) {
	mbit, seconds := fromEnv(b, "SHAREDTENSOR_MBIT", 1000), fromEnv(b, "SHAREDTENSOR_SECONDS", 4)
	network := remotetest.NewNetwork(b)
	from := remotetest.StartOwner(b, "--model", fmt.Sprintf("m=%d", mbit*1_000_000/8*seconds))
	source := network.AddHost(mbit)
	origin := network.StartGateway(source, from.Socket)
	server, err := natslink.Start(natslink.ServerOptions{Store: b.TempDir(), Listen: network.Outside() + ":0", AllowAll: true})
	require.NoError(b, err)
	defer server.Close()
	dev := remotetest.OpenHost(b)
	gigabytes := float64(mbit*seconds) / 8e3
	round := func(hosts int) (took, processors, perGB float64) {
		owners, gateways := make([]*remotetest.Owner, hosts), make([]*remotetest.Gateway, hosts)
		for i := range owners {
			owners[i] = remotetest.StartOwner(b)
		}
		busy, given, begin := processorTime(b), workedBy(b, origin), time.Now()
		for i, owner := range owners {
			host := network.AddHost(mbit)
			gateways[i] = network.StartGateway(host, owner.Socket, "--nats", server.URL(), "--mirror", network.URL(source)+"/m", "--mirror-range", "1MiB", "--mirror-url", network.URL(host))
		}
		for _, owner := range owners {
			client := remotetest.Dial(b, owner.Socket, dev)
			remotetest.Eventually(b, func() error { _, err := client.Info(b.Context(), "m"); return err })
		}
		took = time.Since(begin).Seconds()
		processors = (processorTime(b) - busy) / took
		perGB = workedBy(b, origin) - given
		for i := range owners {
			perGB += workedBy(b, gateways[i])
			require.NoError(b, gateways[i].Terminate()) // the next round must not fetch from the gateways of this round
			owners[i].Kill()
		}
		return took, processors, perGB / gigabytes / float64(hosts)
	}
	counts := []int{1, 2, 4, 8}
	times, ratios, loads, costs := map[int][]float64{}, map[int][]float64{}, map[int][]float64{}, map[int][]float64{}
	round(1) // warm-up: the source computes its digests
	for range b.N {
		for _, n := range counts {
			took, processors, perGB := round(n)
			times[n], loads[n], costs[n] = append(times[n], took), append(loads[n], processors), append(costs[n], perGB)
			ratios[n] = append(ratios[n], took/times[1][len(times[1])-1])
		}
	}
	b.ReportMetric(0, "ns/op")
	for _, n := range counts {
		b.ReportMetric(remotetest.Median(times[n]), fmt.Sprintf("%d-s", n))
		b.ReportMetric(remotetest.Median(loads[n]), fmt.Sprintf("%d-processors", n))
		b.ReportMetric(remotetest.Median(costs[n]), fmt.Sprintf("%d-s/GB", n))
		if n > 1 {
			b.ReportMetric(remotetest.Median(ratios[n]), fmt.Sprintf("%d/1", n))
		}
	}
	b.ReportMetric(float64(runtime.NumCPU()), "processors")
}

// fromEnv returns the number in an environment variable, or otherwise.
func fromEnv(b *testing.B, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(b, err, name)
	return n
}

// processorTime returns the CPU time used on this machine in seconds.
func processorTime(b *testing.B) (seconds float64) {
	text, err := os.ReadFile("/proc/stat")
	require.NoError(b, err)
	line, _, _ := strings.Cut(string(text), "\n")
	for i, word := range strings.Fields(line)[1:] {
		ticks, err := strconv.ParseFloat(word, 64)
		require.NoError(b, err)
		if idle := i == 3 || i == 4; !idle && i < 8 { // the last fields are included in the first ones
			seconds += ticks / 100
		}
	}
	return seconds
}

// workedBy returns the CPU time used by a gateway in seconds.
func workedBy(b *testing.B, g *remotetest.Gateway) (seconds float64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", g.PID()))
	require.NoError(b, err)
	_, words, _ := strings.Cut(string(text), ") ")
	for _, word := range strings.Fields(words)[11:13] { // user and system time
		ticks, err := strconv.ParseFloat(word, 64)
		require.NoError(b, err)
		seconds += ticks / 100
	}
	return seconds
}
