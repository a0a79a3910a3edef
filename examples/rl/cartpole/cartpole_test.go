package cartpole_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/examples/rl/cartpole"
)

func run(e *cartpole.Env, choose func(cartpole.State) bool) (steps int, end cartpole.End) {
	state := e.Reset()
	for end == cartpole.GoesOn {
		state, end = e.Step(choose(state))
		steps++
	}
	return steps, end
}

func TestPushingOneWayFalls(t *testing.T) {
	e := cartpole.New(1)
	for range 20 {
		steps, end := run(e, func(cartpole.State) bool { return true })
		require.Equal(t, cartpole.Fell, end)
		require.InDelta(t, 9.5, steps, 2, "a pole that is pushed one way falls after nine or ten steps")
	}
}

func TestRandomPushesFallSoon(t *testing.T) {
	e := cartpole.New(2)
	var sum int
	for range 300 {
		steps, _ := run(e, func(cartpole.State) bool { return e.Float64() < 0.5 })
		sum += steps
	}
	require.InDelta(t, 22, float64(sum)/300, 5)
}

func TestAGoodControllerLastsTheWholeTime(t *testing.T) {
	e := cartpole.New(3)
	for range 20 {
		steps, end := run(e, func(s cartpole.State) bool { return 0.1*s[0]+0.2*s[1]+2*s[2]+0.5*s[3] > 0 })
		require.Equal(t, cartpole.TimeUp, end)
		require.Equal(t, cartpole.MaxSteps, steps)
	}
}

func TestSameSeedSameEpisode(t *testing.T) {
	a, b := cartpole.New(7), cartpole.New(7)
	require.Equal(t, a.State(), b.State())
	sa, _ := a.Step(true)
	sb, _ := b.Step(true)
	require.Equal(t, sa, sb)
	require.NotEqual(t, cartpole.New(8).State(), a.Reset())
}
