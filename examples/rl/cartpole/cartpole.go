// Package cartpole is the classic control problem: a cart on a track balances a pole and can only be pushed left or
// right. It uses the equations of Barto, Sutton and Anderson (1983), with the usual constants and Euler step.
package cartpole

import (
	"math"
	"math/rand/v2"
)

const (
	gravity   = 9.8
	massPole  = 0.1
	massTotal = 1.0 + massPole
	length    = 0.5 // half of the pole's
	force     = 10.0
	dt        = 0.02

	maxPosition = 2.4
	maxAngle    = 12 * 2 * math.Pi / 360
)

// MaxSteps is the maximum length of an episode, and so its largest reward.
const MaxSteps = 500

// State is the observation: position and speed of the cart, angle and angular speed of the pole, in SI units.
type State [4]float32

// End is the state of an episode after a step.
type End uint8

const (
	// GoesOn means that the episode continues.
	GoesOn End = iota
	// Fell means that the pole fell or the cart left the track.
	Fell
	// TimeUp means that the episode lasted MaxSteps.
	TimeUp
)

// Env is one cart. It must be used by one goroutine at a time.
type Env struct {
	state  State
	steps  int
	random *rand.Rand
}

// New returns an environment at the start of an episode, with random numbers from seed.
func New(seed uint64) *Env {
	e := &Env{random: rand.New(rand.NewPCG(seed, 0))}
	e.Reset()
	return e
}

// Reset begins an episode near the upright position and returns the observation.
func (e *Env) Reset() State {
	for i := range e.state {
		e.state[i] = float32(e.random.Float64()*0.1 - 0.05)
	}
	e.steps = 0
	return e.state
}

// State returns the current observation.
func (e *Env) State() State { return e.state }

// Steps returns the number of steps of the episode.
func (e *Env) Steps() int { return e.steps }

// Float64 returns a random number of [0, 1) from the environment's source.
func (e *Env) Float64() float64 { return e.random.Float64() }

// Step pushes the cart right or left and returns the new observation and the state of the episode. Each step has reward
// 1.
func (e *Env) Step(right bool) (State, End) {
	push := -force
	if right {
		push = force
	}
	x, speed, angle, turn := float64(e.state[0]), float64(e.state[1]), float64(e.state[2]), float64(e.state[3])
	sin, cos := math.Sincos(angle)
	common := (push + massPole*length*turn*turn*sin) / massTotal
	angular := (gravity*sin - cos*common) / (length * (4.0/3.0 - massPole*cos*cos/massTotal))
	linear := common - massPole*length*angular*cos/massTotal
	e.state = State{float32(x + dt*speed), float32(speed + dt*linear), float32(angle + dt*turn), float32(turn + dt*angular)}
	e.steps++
	switch {
	case math.Abs(float64(e.state[0])) > maxPosition || math.Abs(float64(e.state[2])) > maxAngle:
		return e.state, Fell
	case e.steps == MaxSteps:
		return e.state, TimeUp
	}
	return e.state, GoesOn
}
