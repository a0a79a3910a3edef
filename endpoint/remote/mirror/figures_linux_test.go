package mirror_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// BenchmarkFiguresEight has 8 hosts mirror one model at once, beside one host that does, in network namespaces whose
// links are limited, to 1 Gbit/s or to as many Mbit/s as SHAREDTENSOR_MBIT says. A machine whose processors cannot
// move eight times that shows its processors and not the links.
//
//	go test -run '^$' -bench FiguresEight -benchtime 3x ./mirror
//
// "ratio" is the median time of eight to that of one, from the first gateway's start to the last one's version.
func BenchmarkFiguresEight(b *testing.B) {
	mbit := 1000
	if text := os.Getenv("SHAREDTENSOR_MBIT"); text != "" {
		var err error
		mbit, err = strconv.Atoi(text)
		require.NoError(b, err)
	}
	size := mbit * 1_000_000 / 8 * 4 // four seconds of a link
	network := remotetest.NewNetwork(b)
	from := remotetest.StartOwner(b, "--model", fmt.Sprintf("m=%d", size))
	source := network.AddHost(mbit)
	network.StartGateway(source, from.Socket)
	server, err := natslink.Start(natslink.ServerOptions{Store: b.TempDir(), Listen: network.Outside() + ":0", AllowAll: true})
	require.NoError(b, err)
	defer server.Close()
	dev := openHost(b)
	round := func(hosts int) float64 {
		owners := make([]*remotetest.Owner, hosts)
		for i := range owners {
			owners[i] = remotetest.StartOwner(b)
		}
		begin := time.Now()
		for _, owner := range owners {
			host := network.AddHost(mbit)
			network.StartGateway(host, owner.Socket, "--nats", server.URL(), "--mirror", network.URL(source)+"/m", "--mirror-range", "1MiB", "--mirror-url", network.URL(host))
		}
		for _, owner := range owners {
			client := dial(b, owner.Socket, dev)
			remotetest.Eventually(b, func() error { _, err := client.Info(b.Context(), "m"); return err })
		}
		took := time.Since(begin).Seconds()
		for _, owner := range owners {
			owner.Kill()
		}
		return took
	}
	var ones, eights, ratios []float64
	round(1) // which pays for the digests of the source
	for range b.N {
		one, eight := round(1), round(8)
		ones, eights, ratios = append(ones, one), append(eights, eight), append(ratios, eight/one)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(ones), "one-s")
	b.ReportMetric(median(eights), "eight-s")
	b.ReportMetric(median(ratios), "ratio")
}
