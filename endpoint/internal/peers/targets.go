package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// target is a measurement, the rival's in the same run, and the required ratio.
type target struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Rival is the name of the compared measurement.
	Rival string `json:"rival"`
	// Ratio is the median over the rounds of the value divided by the rival's in the same round.
	Ratio float64 `json:"ratio"`
	// Target is the maximum ratio, or the minimum if AtLeast is set.
	Target  float64 `json:"target"`
	AtLeast bool    `json:"at_least,omitempty"`
	OK      bool    `json:"ok"`
	// Skipped is the reason why there is no ratio. A skipped target counts as met.
	Skipped string `json:"skipped,omitempty"`
}

// errMissed is the error of a run with a missed target.
var errMissed = errors.New("a target was missed")

// evaluated sets OK if the target is met.
func (t target) evaluated() target {
	switch {
	case t.Skipped != "":
		t.OK = true
	case t.AtLeast:
		t.OK = t.Ratio >= t.Target
	default:
		t.OK = t.Ratio > 0 && t.Ratio <= t.Target
	}
	return t
}

// line formats the target as a line of text.
func (t target) line() string {
	word, bound := "met", "at most"
	if t.AtLeast {
		bound = "at least"
	}
	switch {
	case t.Skipped != "":
		return fmt.Sprintf("%-7s %s: %.4g %s; %s", "skipped", t.Name, t.Value, t.Unit, t.Skipped)
	case !t.OK:
		word = "MISSED"
	}
	return fmt.Sprintf("%-7s %s: %.4g %s, %.2f x %s, %s %g", word, t.Name, t.Value, t.Unit, t.Ratio, t.Rival, bound, t.Target)
}

// missed reports whether a target was missed.
func (r report) missed() bool {
	for _, t := range r.Targets {
		if !t.OK {
			return true
		}
	}
	return false
}

// micros returns the median in microseconds.
func micros(rounds []samples) float64 {
	return float64(pooled(rounds, 0.5)) / float64(time.Microsecond)
}

// targets returns all targets with their results.
func (b *bench) targets() []target {
	list := b.resultTargets()
	list = append(list, b.argumentTargets()...)
	list = append(list, b.callTargets()...)
	list = append(list, b.callerTargets()...)
	list = append(list, target{
		Name: fmt.Sprintf("attach a model of %d tensors", attachTensors), Value: micros(b.attach.many), Unit: "µs", Rival: "attach one tensor",
		Ratio: ratio(b.attach.many, b.attach.one), Target: 2.5,
	})
	list = append(list, b.modelTargets()...)
	for i := range list {
		if b.plan.only != "" && list[i].Ratio == 0 && list[i].Skipped == "" {
			list[i].Skipped = "only " + b.plan.only + " was requested"
		}
		list[i] = list[i].evaluated()
	}
	return list
}

// maxResultRatios is the maximum duration of a fresh result, as a multiple of iceoryx2's, by size.
var maxResultRatios = map[int64]float64{1 << 20: 2.5, 8 << 20: 1.5, 64 << 20: 1.3}

func (b *bench) resultTargets() (list []target) {
	for _, f := range b.results {
		list = append(list, target{
			Name: "fresh filled tensor with each answer, " + byteSize(f.bytes), Value: micros(f.ours), Unit: "µs", Rival: "iceoryx2, loaned samples",
			Ratio: ratio(f.ours, f.theirs), Target: maxResultRatios[f.bytes], Skipped: b.iceoryx.why,
		}, target{
			Name: "fresh filled tensor with each answer, " + byteSize(f.bytes), Value: micros(f.ours), Unit: "µs", Rival: "the same in memory of its own",
			Ratio: ratio(f.ours, f.fresh), Target: 0.5,
		})
	}
	return list
}

func (b *bench) argumentTargets() (list []target) {
	own := b.subject("endpoint")
	for _, size := range b.plan.sizes {
		list = append(list, target{
			Name: "tensor of " + byteSize(size) + " as argument, mapping kept", Value: micros(own.tensors[size]), Unit: "µs",
			Rival: fmt.Sprintf("%d-byte call", smallBytes), Ratio: ratio(own.tensors[size], own.calls), Target: 1.3,
		})
	}
	return list
}

// baselineCost is the processor time of a call in both processes before calls were optimized, on a machine with two
// processors at 2 GHz.
const baselineCost = 32 * time.Microsecond

func (b *bench) callTargets() []target {
	own, sleeping, floor := b.subject("endpoint"), b.subject("endpoint, sleeping"), b.subject("bare socket")
	return []target{
		{
			Name: fmt.Sprintf("%d-byte call, both spinning", smallBytes), Value: micros(own.calls), Unit: "µs", Rival: "iceoryx2, spinning",
			Ratio: ratio(own.calls, b.spinning), Target: 1.7, Skipped: b.iceoryx.why,
		},
		{
			Name: fmt.Sprintf("%d-byte call, asleep", smallBytes), Value: micros(sleeping.calls), Unit: "µs", Rival: "iceoryx2, by events",
			Ratio: ratio(sleeping.calls, b.byEvents), Target: 1, Skipped: b.iceoryx.why,
		},
		{
			Name: fmt.Sprintf("%d-byte call", smallBytes), Value: micros(own.calls), Unit: "µs", Rival: "bare socket",
			Ratio: ratio(own.calls, floor.calls), Target: 1.5,
		},
		{
			Name: fmt.Sprintf("%d-byte call, allocations on both sides", smallBytes), Value: own.allocs, Unit: "", Rival: "none",
			Ratio: own.allocs, Target: 12,
		},
		{
			Name: "processor time of a spinning call", Value: float64(own.cost) / float64(time.Microsecond), Unit: "µs",
			Rival: "itself when the target was set, " + short(baselineCost), Ratio: float64(own.cost) / float64(baselineCost), Target: 0.5,
		},
	}
}

func (b *bench) callerTargets() []target {
	own, floor, grpc := b.subject("endpoint"), b.subject("bare socket"), b.subject("grpc-go")
	name, rate := fmt.Sprintf("%d callers", b.plan.callers), quantile(own.rates, 0.5)
	return []target{
		{Name: name, Value: rate, Unit: "calls/s", Rival: "bare socket", Ratio: rateRatio(own.rates, floor.rates), Target: 1.5, AtLeast: true},
		{Name: name, Value: rate, Unit: "calls/s", Rival: "grpc-go", Ratio: rateRatio(own.rates, grpc.rates), Target: 6, AtLeast: true},
	}
}

// attachTensors is the number of tensors in the large model.
const attachTensors = 1000

// attachFigure holds the durations of attaching models, by round.
type attachFigure struct{ one, many []samples }

// allAttaches measures attaching a model of one tensor and a model of many.
func (b *bench) allAttaches(ctx context.Context, progress func(string)) error {
	progress("attaching models")
	c := b.subject("endpoint").client.(oursClient)
	for name, tensors := range map[string]int{"one": 1, "many": attachTensors} {
		if err := c.publish(ctx, name, tensors); err != nil {
			return err
		}
	}
	for range b.plan.rounds {
		for _, one := range []struct {
			name string
			to   *[]samples
		}{{"one", &b.attach.one}, {"many", &b.attach.many}} {
			turn := make(samples, b.plan.passing)
			for i := range turn {
				start := time.Now()
				h, err := c.Acquire(ctx, one.name)
				if err != nil {
					return err
				}
				turn[i] = time.Since(start)
				if err := h.Close(); err != nil {
					return err
				}
			}
			*one.to = append(*one.to, turn)
		}
	}
	return nil
}

// publish publishes a model with that number of small tensors.
func (c oursClient) publish(ctx context.Context, name string, tensors int) error {
	specs := make([]module.NamedSpec, tensors)
	for i := range specs {
		specs[i] = module.NamedSpec{Name: fmt.Sprintf("layers.%d.weight", i), DType: tensor.Float32, Shape: tensor.Shape{16, 16}}
	}
	sd, err := module.New(c.dev, specs)
	if err != nil {
		return err
	}
	_, err = c.Publish(ctx, name, sd)
	return errors.Join(err, sd.Close())
}
