package term

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver"
)

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
