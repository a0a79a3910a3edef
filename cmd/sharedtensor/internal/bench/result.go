package bench

import (
	"fmt"
	"math"
	"strconv"
)

// Result is one figure beside its floor.
type Result struct {
	// Name says what was measured.
	Name string `json:"name"`
	// Value is the figure, in Unit. Of repeated measurements it is the median where the name says nothing else; where
	// they are short, that of turns in which other processes did not disturb, and so is Floor.
	Value float64 `json:"value"`
	// Unit is the unit of Value and Floor.
	Unit string `json:"unit"`
	// Floor is what the same costs without this module, measured in the same run; nil where there is no such thing.
	Floor *float64 `json:"floor"`
	// Ratio is Value divided by Floor; nil without a floor.
	Ratio *float64 `json:"ratio"`
	// Target is what the figure is held to; nil where it is only shown. As JSON it is a text such as "ratio <= 1.3".
	Target *Target `json:"target"`
	// OK is false where the target is missed.
	OK bool `json:"ok"`
}

// Target is a bound on a figure.
type Target struct {
	// Of says what is bounded.
	Of Quantity
	// AtLeast makes Limit a lower bound; otherwise it is an upper one.
	AtLeast bool
	// Limit is the bound, which is allowed itself. That of a value is in the result's unit.
	Limit float64
}

// Quantity is a part of a result.
type Quantity uint8

const (
	// Value is the measured figure itself.
	Value Quantity = iota
	// Ratio is the figure divided by its floor.
	Ratio
)

// String is "value" or "ratio".
func (q Quantity) String() string {
	if q == Ratio {
		return "ratio"
	}
	return "value"
}

// String is the bound in a form that people and programs can read: "ratio <= 1.3".
func (t Target) String() string {
	op := "<="
	if t.AtLeast {
		op = ">="
	}
	return fmt.Sprintf("%v %s %s", t.Of, op, strconv.FormatFloat(t.Limit, 'g', -1, 64))
}

// MarshalText is String.
func (t Target) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// holds reports whether the figure keeps to the bound.
func (t Target) holds(r *Result) bool {
	figure := r.Value
	if t.Of == Ratio {
		if r.Ratio == nil {
			return false
		}
		figure = *r.Ratio
	}
	if t.AtLeast {
		return figure >= t.Limit
	}
	return figure <= t.Limit
}

// figure is a result without floor or target.
func figure(name string, value float64, unit string) Result {
	return Result{Name: name, Value: round(value), Unit: unit, OK: true}
}

// over adds the floor.
func (r Result) over(floor float64) Result {
	if floor > 0 {
		ratio := round(r.Value / floor)
		floor = round(floor)
		r.Floor, r.Ratio = &floor, &ratio
	}
	return r
}

// within holds the result to an upper bound.
func (r Result) within(of Quantity, limit float64) Result {
	return r.held(Target{Of: of, Limit: limit})
}

// atLeast holds the result to a lower bound.
func (r Result) atLeast(of Quantity, limit float64) Result {
	return r.held(Target{Of: of, AtLeast: true, Limit: limit})
}

func (r Result) held(t Target) Result {
	r.Target, r.OK = &t, t.holds(&r)
	return r
}

// round keeps four digits: more of a measurement is noise.
func round(v float64) float64 {
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}
