package tensor

import (
	"math"
	"strconv"
)

// precision is the number of digits behind the point.
const precision = 4

// formatScalars prints values of one kind alike and tells the width of the longest.
func formatScalars(values []scalar) (texts []string, width int) {
	var style, imaginary floatStyle
	if len(values) > 0 && (values[0].kind == kindFloat || values[0].kind == kindComplex) {
		style = newFloatStyle(values, func(s scalar) float64 { return s.f })
		imaginary = newFloatStyle(values, func(s scalar) float64 { return s.im })
	}
	texts = make([]string, len(values))
	for i, v := range values {
		texts[i] = v.text(style, imaginary)
		width = max(width, len(texts[i]))
	}
	return texts, width
}

func (s scalar) text(style, imaginary floatStyle) string {
	switch s.kind {
	case kindBool:
		if s.u != 0 {
			return "True"
		}
		return "False"
	case kindInt:
		return strconv.FormatInt(s.i, 10)
	case kindUint:
		return strconv.FormatUint(s.u, 10)
	case kindFloat:
		return style.text(s.f)
	}
	im := imaginary.text(s.im)
	if im[0] != '-' {
		im = "+" + im
	}
	return style.text(s.f) + im + "j"
}

// floatStyle is how the floats of one tensor are printed.
type floatStyle struct {
	integers   bool // all are whole numbers: "3."
	scientific bool
}

// newFloatStyle chooses as PyTorch does: scientific where the numbers other than 0 are a thousand times apart, above 1e8 or
// under 1e-4; without digits behind the point where all are whole.
func newFloatStyle(values []scalar, part func(scalar) float64) floatStyle {
	s := floatStyle{integers: true}
	least, most := math.Inf(1), 0.0
	for _, v := range values {
		f := math.Abs(part(v))
		if f == 0 || math.IsNaN(f) || math.IsInf(f, 0) {
			continue
		}
		least, most = min(least, f), max(most, f)
		s.integers = s.integers && f == math.Trunc(f)
	}
	s.scientific = most > 0 && (most/least > 1000 || most > 1e8 || least < 1e-4)
	return s
}

func (s floatStyle) text(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case s.scientific:
		return strconv.FormatFloat(f, 'e', precision, 64)
	case s.integers:
		return strconv.FormatFloat(f, 'f', 0, 64) + "."
	}
	return strconv.FormatFloat(f, 'f', precision, 64)
}
