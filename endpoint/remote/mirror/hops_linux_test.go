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

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

const (
	hopTensors  = 8
	hopElements = 32 << 10
)

// hopElement returns element i of a tensor in a step. A few percent of the elements change from step to step.
func hopElement(step, tensor, i int) int32 {
	if (i+tensor)%37 != 0 {
		step = 0
	}
	mixed := uint32(step*1_000_003+tensor*7919+i) * 2654435761 // zstd cannot compress this
	mixed = (mixed ^ mixed>>15) * 2246822519
	return int32(mixed ^ mixed>>13)
}

// publishStep publishes a step as the next version at an owner.
func publishStep(t *testing.T, client *endpoint.Client, dev driver.Device, step int) {
	t.Helper()
	sd := module.NewStateDict()
	defer sd.Close()
	mark, err := tensor.FromSlice(dev, tensor.Shape{1}, []int32{int32(step)})
	require.NoError(t, err)
	require.NoError(t, sd.Set("step", mark))
	for k := range hopTensors {
		values := make([]int32, hopElements)
		for i := range values {
			values[i] = hopElement(step, k, i)
		}
		one, err := tensor.FromSlice(dev, tensor.Shape{hopElements}, values)
		require.NoError(t, err)
		require.NoError(t, sd.Set(fmt.Sprintf("layer.%d", k), one))
	}
	_, err = client.Publish(t.Context(), "policy", sd)
	require.NoError(t, err)
}

// readStep compares every element of the newest version with its step, and returns the step.
func readStep(ctx context.Context, client *endpoint.Client) (int, error) {
	h, err := client.Acquire(ctx, "policy")
	if err != nil {
		return 0, err
	}
	defer h.Close()
	values := func(name string) ([]int32, error) {
		one, found := h.StateDict().Get(name)
		if !found {
			return nil, fmt.Errorf("no %s", name)
		}
		return tensor.Data[int32](one)
	}
	mark, err := values("step")
	if err != nil {
		return 0, err
	}
	step := int(mark[0])
	for k := range hopTensors {
		layer, err := values(fmt.Sprintf("layer.%d", k))
		if err != nil {
			return step, err
		}
		for i, v := range layer {
			if want := hopElement(step, k, i); v != want {
				return step, fmt.Errorf("%w: element %d of layer %d is %d in version %d of step %d, which has %d", errMixed, i, k, v, h.Version(), step, want)
			}
		}
	}
	return step, nil
}

var errMixed = errors.New("a version is mixed")

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

	dev := openHost(t)
	source, target := dial(t, owners[0].Socket, dev), dial(t, owners[2].Socket, dev)
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
