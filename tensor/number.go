package tensor

import (
	"math"
	"strconv"
	"strings"
)

// precision is the number of digits behind the decimal point.
const precision = 4

// formatScalars formats values of one kind as PyTorch's _Formatter does. Reals are padded to one width; both parts of
// complex numbers are padded separately. columns is the width of an element in a row, including comma and space.
func formatScalars(values []scalar) (texts []string, columns int) {
	texts = make([]string, len(values))
	if len(values) == 0 {
		return texts, 0
	}
	switch values[0].kind {
	case kindComplex:
		re := newFloatStyle(values, func(s scalar) float64 { return s.f })
		im := newFloatStyle(values, func(s scalar) float64 { return s.im })
		for i, v := range values {
			texts[i] = re.text(v.f) + signed(strings.TrimLeft(im.text(v.im), " ")) + "j"
		}
		return texts, re.width + 2 + im.width + 1
	case kindFloat:
		style := newFloatStyle(values, func(s scalar) float64 { return s.f })
		for i, v := range values {
			texts[i] = style.text(v.f)
		}
		return texts, style.width + 2
	}
	width := 1
	for i, v := range values {
		texts[i] = v.text()
		width = max(width, len(texts[i]))
	}
	for i := range texts {
		texts[i] = pad(texts[i], width)
	}
	return texts, width + 2
}

// pad adds spaces before text.
func pad(text string, width int) string { return strings.Repeat(" ", max(0, width-len(text))) + text }

// signed adds a plus to a number without a minus.
func signed(text string) string {
	if text[0] != '-' {
		return "+" + text
	}
	return text
}

// text formats a number that is not a float.
func (s scalar) text() string {
	switch s.kind {
	case kindBool:
		if s.u != 0 {
			return "True"
		}
		return "False"
	case kindInt:
		return strconv.FormatInt(s.i, 10)
	}
	return strconv.FormatUint(s.u, 10)
}

// floatStyle is the format of the floats of one tensor.
type floatStyle struct {
	integers   bool // all are whole numbers: "3."
	scientific bool
	width      int // of the longest number, except zeros and values that are not finite
}

// newFloatStyle chooses as PyTorch does: scientific if the nonzero numbers differ by more than a factor of a thousand,
// exceed 1e8 or, unless all are whole, are below 1e-4; without decimal digits if all are whole.
func newFloatStyle(values []scalar, part func(scalar) float64) floatStyle {
	s := floatStyle{integers: true, width: 1}
	least, most := math.Inf(1), 0.0
	counts := func(f float64) bool { return f != 0 && !math.IsNaN(f) && !math.IsInf(f, 0) }
	for _, v := range values {
		f := math.Abs(part(v))
		if counts(f) {
			least, most = min(least, f), max(most, f)
			s.integers = s.integers && f == math.Trunc(f)
		}
	}
	s.scientific = most > 0 && (most/least > 1000 || most > 1e8 || !s.integers && least < 1e-4)
	for _, v := range values {
		if f := part(v); counts(f) {
			s.width = max(s.width, len(s.number(f)))
		}
	}
	return s
}

// text formats a number in the style's width.
func (s floatStyle) text(f float64) string { return pad(s.number(f), s.width) }

func (s floatStyle) number(f float64) string {
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
