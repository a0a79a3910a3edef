package jsonvalue_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/jsonvalue"
)

func TestParseJSON(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]any{
		"3": int64(3), "-9223372036854775808": int64(-1 << 63), "18446744073709551615": uint64(1<<64 - 1), "1.5": 1.5, "1e2": 100.0, "null": nil,
		`"3"`: "3", `[1, [2.5]]`: []any{int64(1), []any{2.5}}, ` {"a": {"b": 1}} `: map[string]any{"a": map[string]any{"b": int64(1)}},
	} {
		got, err := jsonvalue.Parse([]byte(text))
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	zero, err := jsonvalue.Parse([]byte("[0, -0, -0.0]"))
	require.NoError(t, err)
	require.Equal(t, int64(0), zero.([]any)[0])
	for _, v := range zero.([]any)[1:] {
		require.True(t, math.Signbit(v.(float64)), "the sign of zero is kept")
	}
	for _, text := range []string{"", "{", "1 1", "1}", "18446744073709551616", "[1e400]", "nan"} {
		_, err := jsonvalue.Parse([]byte(text))
		require.ErrorIs(t, err, endpoint.ErrInvalid, text)
	}
}

func TestStatesThroughJSON(t *testing.T) {
	t.Parallel()
	type states struct {
		Client endpoint.ClientState
		Handle endpoint.HandleState
	}
	for client := endpoint.StateIdle; client <= endpoint.StateClosed; client++ {
		for handle := endpoint.Current; handle <= endpoint.Orphaned; handle++ {
			want := states{client, handle}
			text, err := json.Marshal(want)
			require.NoError(t, err)
			var got states
			require.NoError(t, json.Unmarshal(text, &got))
			require.Equal(t, want, got)
		}
	}
	for _, text := range []string{`{"Client":"ClientState(9)"}`, `{"Handle":""}`} {
		require.ErrorIs(t, json.Unmarshal([]byte(text), new(states)), endpoint.ErrInvalid, text)
	}
}
