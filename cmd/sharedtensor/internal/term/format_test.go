package term

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFormatBytes(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{
		0: "0 B", 1: "1 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 102300: "99.9 KiB", 102400: "100 KiB",
		1<<20 - 1: "1.0 MiB", 1 << 20: "1.0 MiB", 15204352: "14.5 MiB", 1 << 30: "1.0 GiB", 1 << 40: "1.0 TiB", 1 << 50: "1.0 PiB",
		math.MaxInt64: "8.0 EiB", -2048: "-2.0 KiB",
	} {
		require.Equal(t, want, FormatBytes(n), n)
	}
}

func TestFormatRate(t *testing.T) {
	t.Parallel()
	require.Equal(t, "2.5 GiB/s", FormatRate(5<<29, time.Second))
	require.Equal(t, "1.0 GiB/s", FormatRate(1<<30-1, time.Second))
	require.Equal(t, "250 MiB/s", FormatRate(500<<20, 2*time.Second))
	require.Equal(t, "1.5 KiB/s", FormatRate(1536, time.Second))
	require.Equal(t, "12 B/s", FormatRate(12, time.Second))
	require.Equal(t, "0 B/s", FormatRate(0, time.Second))
	require.Equal(t, "4.0 EiB/s", FormatRate(math.MaxInt64, 1), "more than a number has room for")
	require.Equal(t, "-", FormatRate(1, 0))
	require.Equal(t, "-", FormatRate(-1, time.Second))
}

func TestFormatDuration(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0ns", 870: "870ns", 999: "999ns", 1000: "1.00µs", 12_345: "12.3µs", 999_999: "1.00ms", 4_560_000: "4.56ms", 123 * time.Millisecond: "123ms",
		999_960 * time.Microsecond: "1.00s", 1230 * time.Millisecond: "1.23s", 59 * time.Second: "59.0s", 59_990 * time.Millisecond: "1m00s",
		123 * time.Second: "2m03s", 3599 * time.Second: "59m59s", 3_599_700 * time.Millisecond: "1h00m", 62 * time.Minute: "1h02m",
		-1500: "-1.50µs", math.MinInt64: "-2562047h47m", math.MaxInt64: "2562047h47m", // the smallest duration has no negation
	} {
		require.Equal(t, want, FormatDuration(d), d.String())
	}
}

func TestFormatAge(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Hour: "now", 0: "now", time.Second: "1s", 59 * time.Second: "59s", time.Minute: "1m", time.Hour: "1h", 47 * time.Hour: "47h", 48 * time.Hour: "2d",
	} {
		require.Equal(t, want, FormatAge(d), d.String())
	}
}

func TestFormatShapeAndCount(t *testing.T) {
	t.Parallel()
	require.Equal(t, "[]", FormatShape(nil))
	require.Equal(t, "[512, 3]", FormatShape([]int64{512, 3}))
	require.Equal(t, "0 tensors", Count(0, "tensor"))
	require.Equal(t, "1 tensor", Count(1, "tensor"))
}

func TestPrintable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain": "plain", "ünï 重": "ünï 重", "a\x1b[2Jb": `a\x1b[2Jb`, "a\nb\tc": `a\nb\tc`, "\xff": `�`, "\u202eevil": `\u202eevil`,
	} {
		require.Equal(t, want, Printable(text))
	}
}
