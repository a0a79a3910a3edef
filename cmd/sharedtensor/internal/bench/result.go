package bench

import (
	"fmt"
	"math"
	"strconv"
)

// Result is one figure with its floor.
type Result struct {
	// Name identifies the measurement.
	Name string `json:"name"`
	// Value is the figure in Unit. Repeated measurements are reduced to their median, unless Name says otherwise. For
	// short measurements, Value and Floor are medians of undisturbed turns; see turns.quiet.
	Value float64 `json:"value"`
	// Unit is the unit of Value and Floor.
	Unit string `json:"unit"`
	// Floor is the cost without this module, measured in the same run. It is nil if there is no equivalent.
	Floor *float64 `json:"floor"`
	// Ratio is Value divided by Floor, or nil without a floor.
	Ratio *float64 `json:"ratio"`
	// Target is the bound that the figure must meet, or nil if there is none. In JSON it is a text such as "ratio <=
	// 1.3".
	Target *Target `json:"target"`
	// OK reports whether the target is met. It is true without a target.
	OK bool `json:"ok"`
}

// Target is a bound on a figure.
type Target struct {
	// Of selects the bounded quantity.
	Of Quantity
	// AtLeast makes Limit a lower bound instead of an upper bound.
	AtLeast bool
	// Limit is the bound, inclusive. For a value it is in the result's unit.
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

// String returns "value" or "ratio".
func (q Quantity) String() string {
	if q == Ratio {
		return "ratio"
	}
	return "value"
}

// String returns the bound, such as "ratio <= 1.3".
func (t Target) String() string {
	op := "<="
	if t.AtLeast {
		op = ">="
	}
	return fmt.Sprintf("%v %s %s", t.Of, op, strconv.FormatFloat(t.Limit, 'g', -1, 64))
}

// MarshalText returns the bound as String does.
func (t Target) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// holds reports whether the result meets the bound.
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

// figure returns a result without floor or target.
func figure(name string, value float64, unit string) Result {
	return Result{Name: name, Value: round(value), Unit: unit, OK: true}
}

// over returns r with a floor.
func (r Result) over(floor float64) Result {
	if floor > 0 {
		ratio := round(r.Value / floor)
		floor = round(floor)
		r.Floor, r.Ratio = &floor, &ratio
	}
	return r
}

// within returns r with an upper bound.
func (r Result) within(of Quantity, limit float64) Result {
	return r.held(Target{Of: of, Limit: limit})
}

// atLeast returns r with a lower bound.
func (r Result) atLeast(of Quantity, limit float64) Result {
	return r.held(Target{Of: of, AtLeast: true, Limit: limit})
}

func (r Result) held(t Target) Result {
	r.Target, r.OK = &t, t.holds(&r)
	return r
}

// round rounds to four significant digits. The rest is noise.
func round(v float64) float64 {
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}
