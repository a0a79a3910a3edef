package main

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/examples/rl/cartpole"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// weights returns a state dict of one hidden layer of 3 and the output, all weights w.
func weights(t *testing.T, w float32, shapes ...tensor.Shape) *module.StateDict {
	dev, err := host.Open()
	require.NoError(t, err)
	sd := module.NewStateDict()
	t.Cleanup(func() { require.NoError(t, sd.Close()); require.NoError(t, dev.Close()) })
	for i, shape := range shapes {
		values := make([]float32, shape[0]*shape[1])
		for j := range values {
			values[j] = w * float32(j)
		}
		weight, err := tensor.FromSlice(dev, shape, values)
		require.NoError(t, err)
		require.NoError(t, sd.Set(fmt.Sprintf("actor.%d.weight", i), weight))
		bias, err := tensor.FromSlice(dev, shape[:1], values[:shape[0]])
		require.NoError(t, err)
		require.NoError(t, sd.Set(fmt.Sprintf("actor.%d.bias", i), bias))
	}
	return sd
}

func TestPolicyComputesTheLayers(t *testing.T) {
	p, err := newPolicy(weights(t, 0.1, tensor.Shape{3, 4}, tensor.Shape{2, 3}))
	require.NoError(t, err)
	x := [4]float32{1, 2, 3, 4}
	var hidden [3]float64
	for r := range hidden {
		hidden[r] = 0.1 * float64(r)
		for j := range x {
			hidden[r] += 0.1 * float64(r*4+j) * float64(x[j])
		}
		hidden[r] = math.Tanh(hidden[r])
	}
	var logits [2]float64
	for r := range logits {
		logits[r] = 0.1 * float64(r)
		for j := range hidden {
			logits[r] += 0.1 * float64(r*3+j) * hidden[j]
		}
	}
	want := math.Exp(logits[1]) / (math.Exp(logits[0]) + math.Exp(logits[1]))
	for range 3 {
		require.InDelta(t, want, p.right(x), 1e-6)
	}
}

func TestPolicyRefusesOtherShapes(t *testing.T) {
	for _, shapes := range [][]tensor.Shape{{}, {{3, 5}, {2, 3}}, {{3, 4}, {2, 4}}, {{3, 4}}} {
		_, err := newPolicy(weights(t, 1, shapes...))
		require.Error(t, err, "%v", shapes)
	}
}

func TestRolloutRowsFollowEachOther(t *testing.T) {
	p, err := newPolicy(weights(t, 0.01, tensor.Shape{8, 4}, tensor.Shape{2, 8}))
	require.NoError(t, err)
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	r, err := newRollout(dev, 400)
	require.NoError(t, err)
	defer r.sd.Close()
	r.fill(cartpole.New(5), p)
	var episodes int
	for i, end := range r.ends {
		require.Less(t, r.logProbs[i], float32(0))
		if end != uint8(cartpole.GoesOn) {
			episodes++
			require.Greater(t, r.lengths[i], float32(5))
			continue
		}
		require.Zero(t, r.lengths[i])
		if i+1 < len(r.ends) {
			require.Equal(t, r.next[4*i:4*i+4], r.observations[4*i+4:4*i+8])
		}
	}
	require.Greater(t, episodes, 5)
}
