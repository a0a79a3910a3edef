package mirror_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// A model in training is followed from host A to B and from B to C, each in a separate network namespace, over links of
// 200 Mbit/s. C cannot reach A. The gateways of B and then A are killed with SIGKILL and restarted. Readers on C see
// complete steps only, in order, and finally the newest.
func TestTwoHops(t *testing.T) {
	network := remotetest.NewNetwork(t)
	a, b, c := network.AddHost(200), network.AddHost(200), network.AddHost(200)
	network.Block(a, c)
	owners := make([]*remotetest.Owner, 3)
	for i := range owners {
		owners[i] = remotetest.StartOwner(t, "--socket", filepath.Join(t.TempDir(), "o.sock"))
	}
	args := func(from int) []string {
		return []string{"--mirror", network.URL(from) + "/policy", "--mirror-range", "64KiB"}
	}
	gatewayA := network.StartGateway(a, owners[0].Socket)
	gatewayB := network.StartGateway(b, owners[1].Socket, args(a)...)
	network.StartGateway(c, owners[2].Socket, args(b)...)

	dev := remotetest.OpenHost(t)
	source, target := remotetest.Dial(t, owners[0].Socket, dev), remotetest.Dial(t, owners[2].Socket, dev)
	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	var mu sync.Mutex
	steps, reads := map[int]bool{}, 0
	for range 2 {
		readers.Go(func() {
			last := 0
			for ctx.Err() == nil {
				step, err := readStep(ctx, target)
				if errors.Is(err, errMixed) || err == nil && step < last {
					t.Errorf("after step %d: step %d: %v", last, step, err)
					return
				}
				if err != nil {
					time.Sleep(10 * time.Millisecond) // no version has been published yet
					continue
				}
				last = step
				mu.Lock()
				steps[step] = true
				reads++
				mu.Unlock()
			}
		})
	}
	arrives := func(step int) {
		t.Helper()
		remotetest.Eventually(t, func() error {
			got, err := readStep(t.Context(), target)
			if err == nil && got != step {
				err = fmt.Errorf("step %d is there", got)
			}
			return err
		})
	}
	publishStep(t, source, dev, 1)
	arrives(1)
	for step := 2; step <= 6; step++ {
		publishStep(t, source, dev, step)
		if step == 4 {
			gatewayB.Kill() // during any activity
		}
	}
	network.StartGateway(b, owners[1].Socket, args(a)...)
	arrives(6)
	for step := 7; step <= 10; step++ {
		publishStep(t, source, dev, step)
		if step == 8 {
			gatewayA.Kill()
		}
	}
	network.StartGateway(a, owners[0].Socket)
	arrives(10)
	stop()
	readers.Wait()
	t.Logf("%d reads of %d steps, every element compared", reads, len(steps))
	require.Greater(t, reads, 2)
}
