package term

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
)

// FormatBytes formats a size in powers of 1024: "0 B", "1.5 KiB", "14.5 MiB".
func FormatBytes(n int64) string {
	if n < 1024 && n > -1024 {
		return strconv.FormatInt(n, 10) + " B"
	}
	v, unit := float64(n), ""
	for _, unit = range []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"} {
		v /= 1024
		// A value that would print as 1024 uses the next unit.
		if math.Abs(v) < 1023.95 {
			break
		}
	}
	return FormatSignificant(v) + " " + unit
}

// FormatSignificant formats a number with one decimal below 100, and without decimals from 100.
func FormatSignificant(v float64) string {
	if math.Abs(v) >= 99.95 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

// FormatRate formats bytes per second in the units of FormatBytes: "2.5 GiB/s".
func FormatRate(bytes int64, d time.Duration) string {
	if d <= 0 || bytes < 0 {
		return "-"
	}
	return FormatBytes(int64(min(float64(bytes)/d.Seconds(), math.MaxInt64/2))) + "/s"
}

// Saturated returns the sum of two sizes, or the largest int64 on overflow.
func Saturated(a, b int64) int64 {
	if a > 0 && b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}

// FormatDuration formats a duration with a suitable unit and three digits: "870ns", "12.3µs", "4.56ms", "1.23s",
// "2m03s", "1h02m".
func FormatDuration(d time.Duration) string {
	if d < 0 {
		return "-" + FormatDuration(-max(d, -math.MaxInt64)) // the smallest duration has no negation
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

// threeDigits formats a number under 1000 with three digits.
func threeDigits(v float64, whole bool) string {
	switch {
	case whole || v >= 99.95:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// FormatAge formats an age in its largest unit: "now", "12s", "3m", "5h", "2d".
func FormatAge(d time.Duration) string {
	switch {
	case d < time.Second:
		return "now" // also if the clock was set back
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// FormatShape formats a shape as tensor libraries do: "[512, 3]", or "[]" for a scalar.
func FormatShape(shape []int64) string {
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

// Count formats a number with its noun: "1 tensor", "2 tensors".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// byteUnits are the accepted units of sizes, case-insensitive.
var byteUnits = []struct {
	name  string
	bytes float64
}{
	{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1 << 40},
	{"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12},
	{"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}, {"t", 1 << 40},
	{"b", 1}, {"", 1},
}

// ParseBytes parses a size such as "64MiB", "1.5 GB" or "4096". A single letter is a power of 1024. It fails with
// driver.ErrInvalid.
func ParseBytes(text string) (int64, error) {
	lower := strings.ToLower(strings.TrimSpace(text))
	for _, u := range byteUnits {
		number, found := strings.CutSuffix(lower, u.name)
		if !found {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || math.IsNaN(v) || v < 0 || v*u.bytes >= math.MaxInt64 {
			break
		}
		return int64(v * u.bytes), nil
	}
	return 0, fmt.Errorf("%w: size %q: use a number with a unit, as in 64MiB or 1.5GB", driver.ErrInvalid, text)
}
