package mirror_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// mirrorCosts are the delays of mirrors that fetch from each other.
type mirrorCosts struct {
	claim    time.Duration // to acquire a slot in NATS
	announce time.Duration // until the next mirror has received the announcement
	first    time.Duration // until the first bytes have arrived over a link
}

// simulate returns the time in which hosts mirror a model that they all start to fetch at once, each with a link of
// rate bytes per second. Each serves fanout others, which share its link. A mirror with a slot has fanout slots itself
// once it has its first bytes.
func simulate(hosts, fanout int, bytes, rate float64, c mirrorCosts) time.Duration {
	type place struct {
		at   time.Duration // when it can be acquired
		rate float64       // bytes per second for each mirror that it serves
	}
	free := []place{}
	for range fanout {
		free = append(free, place{0, rate / float64(fanout)})
	}
	var last time.Duration
	for range hosts {
		slices.SortFunc(free, func(a, b place) int { return int(a.at - b.at) })
		p := free[0]
		free = free[1:]
		begin := p.at + c.claim
		got := min(p.rate, rate)
		last = max(last, begin+time.Duration(bytes/got*float64(time.Second)))
		for range fanout {
			free = append(free, place{begin + c.first + c.announce, min(got, rate/float64(fanout))})
		}
	}
	return last
}

// TestThousandMirrors measures the cost of finding another mirror, and simulates up to 1,000 mirrors that start at once
// on links of 1 Gbit/s. If the model takes long to transfer, a thousand mirrors take little longer than one. The design
// reaches its limit when the chain grows more slowly than the model is transferred. Then a fan-out of two is faster,
// and beyond that, fetching pieces from many mirrors.
func TestThousandMirrors(t *testing.T) {
	server, _ := startNATS(t)
	conn, err := server.Connect()
	require.NoError(t, err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "measured", Storage: jetstream.MemoryStorage})
	require.NoError(t, err)
	w, err := kv.Watch(t.Context(), "have.*")
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Stop()) }()
	require.Nil(t, <-w.Updates(), "nothing is there yet")
	var claims, announcements []time.Duration
	for i := range 200 {
		begin := time.Now()
		_, err := kv.Create(t.Context(), fmt.Sprintf("slot.%d", i), nil)
		require.NoError(t, err)
		claims = append(claims, time.Since(begin))
		begin = time.Now()
		_, err = kv.Put(t.Context(), fmt.Sprintf("have.%d", i), []byte("{}"))
		require.NoError(t, err)
		<-w.Updates()
		announcements = append(announcements, time.Since(begin))
	}
	slices.Sort(claims)
	slices.Sort(announcements)
	const rate = 125e6
	c := mirrorCosts{
		claim: claims[len(claims)/2], announce: announcements[len(announcements)/2] + 20*time.Millisecond, // plus announceEvery
		first: time.Duration(64e3 / rate * float64(time.Second)),
	}
	t.Logf("measured: a claim %v, a word that is heard %v", c.claim, announcements[len(announcements)/2])
	t.Logf("%9s %6s %10s %10s %10s %10s", "model", "fanout", "1", "8", "100", "1000")
	for _, bytes := range []float64{1e8, 1e9, 16e9, 140e9} {
		for _, fanout := range []int{1, 2, 4} {
			var took [4]time.Duration
			for i, hosts := range []int{1, 8, 100, 1000} {
				took[i] = simulate(hosts, fanout, bytes, rate, c)
			}
			t.Logf("%6.1f GB %6d %10v %10v %10v %10v", bytes/1e9, fanout, took[0].Round(time.Millisecond), took[1].Round(time.Millisecond),
				took[2].Round(time.Millisecond), took[3].Round(time.Millisecond))
		}
	}
	c = mirrorCosts{claim: time.Millisecond, announce: 21 * time.Millisecond, first: time.Millisecond} // costs on an idle machine
	one := simulate(1, 1, 16e9, rate, c)
	require.Less(t, simulate(8, 1, 16e9, rate, c), one*3/2)
	require.Less(t, simulate(1000, 1, 16e9, rate, c), one*3/2, "16 GB to a thousand hosts")
	require.Greater(t, simulate(1000, 1, 1e8, rate, c), simulate(1000, 2, 1e8, rate, c), "a small model outruns the chain")
}
