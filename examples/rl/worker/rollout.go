package main

import (
	"errors"
	"math"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/examples/rl/cartpole"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// rollout holds the observations of a worker in shared memory, one row for each step.
type rollout struct {
	sd           *module.StateDict
	observations []float32 // before the step, 4 a row
	next         []float32 // after it, 4 a row
	actions      []int64   // 1 is right
	logProbs     []float32 // of the chosen action
	ends         []uint8   // cartpole.End after the step
	lengths      []float32 // of episodes that ended in this step, 0 elsewhere
	facts        []int64   // version of the policy, nanoseconds from its publication to its arrival
}

// newRollout returns an empty rollout of that many steps, owned by the caller.
func newRollout(dev driver.Device, steps int64) (_ *rollout, err error) {
	r := &rollout{sd: module.NewStateDict()}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.sd.Close())
		}
	}()
	return r, errors.Join(
		add(r.sd, dev, "observations", tensor.Float32, tensor.Shape{steps, 4}, &r.observations),
		add(r.sd, dev, "next", tensor.Float32, tensor.Shape{steps, 4}, &r.next),
		add(r.sd, dev, "actions", tensor.Int64, tensor.Shape{steps}, &r.actions),
		add(r.sd, dev, "log_probs", tensor.Float32, tensor.Shape{steps}, &r.logProbs),
		add(r.sd, dev, "ends", tensor.Uint8, tensor.Shape{steps}, &r.ends),
		add(r.sd, dev, "lengths", tensor.Float32, tensor.Shape{steps}, &r.lengths),
		add(r.sd, dev, "facts", tensor.Int64, tensor.Shape{2}, &r.facts),
	)
}

// add adds a new tensor to sd and stores its elements in data.
func add[T tensor.Element](sd *module.StateDict, dev driver.Device, name string, dt tensor.DType, shape tensor.Shape, data *[]T) error {
	t, err := tensor.Zeros(dev, dt, shape)
	if err != nil {
		return err
	}
	if *data, err = tensor.Data[T](t); err != nil {
		return errors.Join(err, t.Close())
	}
	return sd.Set(name, t) // takes ownership of t
}

// fill runs the environment with the policy, one step for each row.
func (r *rollout) fill(env *cartpole.Env, p *policy) {
	for i := range r.actions {
		state := env.State()
		right := p.right(state)
		probability := 1 - right
		if env.Float64() < right {
			r.actions[i], probability = 1, right
		}
		after, end := env.Step(r.actions[i] == 1)
		copy(r.observations[4*i:], state[:])
		copy(r.next[4*i:], after[:])
		r.logProbs[i], r.ends[i] = float32(math.Log(probability)), uint8(end)
		if end != cartpole.GoesOn {
			r.lengths[i] = float32(env.Steps())
			env.Reset()
		}
	}
}
