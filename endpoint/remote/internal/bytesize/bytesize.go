// Package bytesize reads and prints numbers of bytes.
package bytesize

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes, written as 64MiB, 1GB or 4096. It implements pflag.Value.
type Size int64

// byteUnits lists the units, the largest of each kind first.
var byteUnits = []struct {
	name  string
	bytes int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1},
}

// String returns the size in the largest unit that divides it.
func (b Size) String() string {
	for _, u := range byteUnits {
		if n := int64(b); n != 0 && n%u.bytes == 0 && u.bytes > 1 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// Set parses a number with an optional unit.
func (b *Size) Set(s string) error {
	text, factor := strings.TrimSpace(s), int64(1)
	for _, u := range byteUnits {
		if head, found := strings.CutSuffix(text, u.name); found {
			text, factor = strings.TrimSpace(head), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/factor {
		return fmt.Errorf("%q is not a size such as 64MiB", s)
	}
	*b = Size(n * factor)
	return nil
}

// Type implements pflag.Value.
func (b *Size) Type() string { return "size" }
