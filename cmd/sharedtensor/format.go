package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// formatBytes is a size in units of 1024: "0 B", "1.5 KiB", "14.5 MiB".
func formatBytes(n int64) string {
	if n < 1024 && n > -1024 {
		return strconv.FormatInt(n, 10) + " B"
	}
	v, unit := float64(n), ""
	for _, unit = range []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"} {
		v /= 1024
		// What would be printed as 1024 is 1 of the next unit.
		if math.Abs(v) < 1023.95 {
			break
		}
	}
	return formatSignificant(v) + " " + unit
}

// formatSignificant is a number with one digit behind the point, or none from 100 on.
func formatSignificant(v float64) string {
	if math.Abs(v) >= 99.95 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

// formatRate is bytes a second, in the units of formatBytes: "2.5 GiB/s".
func formatRate(bytes int64, d time.Duration) string {
	if d <= 0 || bytes < 0 {
		return "-"
	}
	return formatBytes(int64(min(float64(bytes)/d.Seconds(), math.MaxInt64/2))) + "/s"
}

// saturated is the sum of two sizes, or the largest there is.
func saturated(a, b int64) int64 {
	if a > 0 && b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}

// formatDuration is a duration in the unit that suits it, with three digits: "870ns", "12.3µs", "4.56ms", "1.23s", "2m03s", "1h02m".
func formatDuration(d time.Duration) string {
	if d < 0 {
		return "-" + formatDuration(-max(d, -math.MaxInt64)) // the least one has no opposite
	}
	for _, u := range [...]struct {
		unit time.Duration
		name string
	}{{time.Nanosecond, "ns"}, {time.Microsecond, "µs"}, {time.Millisecond, "ms"}, {time.Second, "s"}} {
		limit := 1000 * u.unit
		if u.unit == time.Second {
			limit = time.Minute
		}
		v := float64(d) / float64(u.unit)
		if text := threeDigits(v, u.unit == time.Nanosecond); d < limit && text != "1000" && text != "60.0" {
			return text + u.name
		}
	}
	d = d.Round(time.Second)
	if d < time.Hour {
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	}
	d = d.Round(time.Minute)
	return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
}

// threeDigits is a number under 1000 with three digits.
func threeDigits(v float64, whole bool) string {
	switch {
	case whole || v >= 99.95:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// formatAge is how long ago something was, to the largest unit: "now", "12s", "3m", "5h", "2d".
func formatAge(d time.Duration) string {
	switch {
	case d < time.Second:
		return "now" // also for clocks that were set back
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// formatShape is a shape as tensor libraries print it: "[512, 3]", "[]" for a scalar.
func formatShape(shape []int64) string {
	var b strings.Builder
	b.WriteByte('[')
	for i, n := range shape {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strconv.FormatInt(n, 10))
	}
	b.WriteByte(']')
	return b.String()
}

// count is a number with its noun: "1 tensor", "2 tensors".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// printable makes text that a file or a peer chose fit for a terminal: nothing in it moves the cursor or breaks the line.
func printable(text string) string {
	clean := true
	for _, r := range text {
		clean = clean && unicode.IsPrint(r) && r != utf8.RuneError
	}
	if clean {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) && r != utf8.RuneError {
			b.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRune(r)
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}
