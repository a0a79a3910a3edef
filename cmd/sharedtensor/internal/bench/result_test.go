package bench

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestResults(t *testing.T) {
	for _, c := range []struct {
		r    Result
		json string
	}{
		{figure("a", 1234.56, "B"), `{"name":"a","value":1235,"unit":"B","floor":null,"ratio":null,"target":null,"ok":true}`},
		{figure("a", 26, "µs").over(20).within(Ratio, 1.3), `{"name":"a","value":26,"unit":"µs","floor":20,"ratio":1.3,"target":"ratio <= 1.3","ok":true}`},
		{figure("a", 26.1, "µs").over(20).within(Ratio, 1.3), `{"name":"a","value":26.1,"unit":"µs","floor":20,"ratio":1.305,"target":"ratio <= 1.3","ok":false}`},
		{figure("a", 0.7, "GB/s").over(1).atLeast(Ratio, 0.8), `{"name":"a","value":0.7,"unit":"GB/s","floor":1,"ratio":0.7,"target":"ratio >= 0.8","ok":false}`},
		{figure("a", 0.9, "GB/s").over(1).atLeast(Ratio, 0.8), `{"name":"a","value":0.9,"unit":"GB/s","floor":1,"ratio":0.9,"target":"ratio >= 0.8","ok":true}`},
		{figure("a", 0.001234567, "ms").within(Value, 100), `{"name":"a","value":0.001235,"unit":"ms","floor":null,"ratio":null,"target":"value <= 100","ok":true}`},
		{figure("a", 1, "ms").over(0).within(Ratio, 1.3), `{"name":"a","value":1,"unit":"ms","floor":null,"ratio":null,"target":"ratio <= 1.3","ok":false}`},
		{figure("a", 0, "KiB").within(Value, 32), `{"name":"a","value":0,"unit":"KiB","floor":null,"ratio":null,"target":"value <= 32","ok":true}`},
	} {
		var out strings.Builder
		enc := json.NewEncoder(&out)
		enc.SetEscapeHTML(false)
		require.NoError(t, enc.Encode(c.r))
		require.Equal(t, c.json+"\n", out.String())
	}
}

func TestSamples(t *testing.T) {
	require.Zero(t, samples(nil).median())
	s := samples{5, 1, 4, 2, 3}
	require.EqualValues(t, 3, s.median())
	require.EqualValues(t, 5, s.quantile(0.99))
	require.EqualValues(t, 1, s.quantile(0))
	require.Equal(t, samples{5, 1, 4, 2, 3}, s)
	many := turns{{9, 9, 9}, {2, 3, 100}, {1, 4, 4}, {50, 50, 50}}
	require.EqualValues(t, 4, many.quiet())
	require.Len(t, many.all(), 12)
}

func TestAlternate(t *testing.T) {
	var order []int
	record := func(i int) func(context.Context) (time.Duration, error) {
		return func(context.Context) (time.Duration, error) {
			order = append(order, i)
			return time.Duration(i), nil
		}
	}
	all, err := alternate(context.Background(), schedule{turns: 2}, subject{rounds: 1, run: record(1)}, subject{rounds: 2, run: record(2)})
	require.NoError(t, err)
	require.Equal(t, []int{1, 2, 2, 2, 2, 1}, order)
	require.Equal(t, []turns{{{1}, {1}}, {{2, 2}, {2, 2}}}, all)

	order = nil
	_, err = alternate(context.Background(), schedule{turns: 1}, subject{rounds: 16, run: record(1)})
	require.NoError(t, err)
	require.Len(t, order, 16+16/unmeasured)

	all, err = alternate(context.Background(), schedule{turns: 1000, limit: time.Nanosecond}, subject{rounds: 1, run: record(1)})
	require.NoError(t, err)
	require.Len(t, all[0], 1, "the first turn is always measured")

	broken := errors.New("broken")
	_, err = alternate(context.Background(), schedule{turns: 1}, subject{rounds: 8, run: func(context.Context) (time.Duration, error) { return 0, broken }})
	require.ErrorIs(t, err, broken)
}

func TestNames(t *testing.T) {
	var names []string
	for _, b := range All() {
		require.NotEmpty(t, b.Short)
		require.Positive(t, b.Limit)
		require.NotContains(t, names, b.Name)
		names = append(names, b.Name)
	}
	require.Equal(t, 3, pick(Once, 1, 2, 3))
	require.Equal(t, 2, pick(Quick, 1, 2, 3))
	require.Equal(t, 1, pick(Full, 1, 2, 3))
}
