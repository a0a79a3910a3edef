package codec

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// A list of another length than the array is refused with the field's name.
func TestArrayLengthMismatch(t *testing.T) {
	t.Parallel()
	type point struct {
		At   [3]int    `cbor:",omitempty"`
		ID   [4]byte   `cbor:",omitempty"`
		When time.Time `cbor:",omitempty"`
		Next *point
		Rows [][2]float64 `cbor:",omitempty"`
	}
	decode := func(value any, out any) error {
		raw, err := message.MarshalPayload(value)
		require.NoError(t, err)
		_, err = DecodePayload(raw, nil, out, true)
		return err
	}
	var got [3]int
	require.NoError(t, decode([]int{1, 2, 3}, &got))
	require.Equal(t, [3]int{1, 2, 3}, got)
	for _, list := range [][]int{{1, 2, 3, 4}, {1, 2}, {}} {
		require.ErrorIs(t, decode(list, &got), message.ErrEncoding, "%v", list)
	}
	var bytes [4]byte
	require.NoError(t, decode([]byte{1, 2, 3, 4}, &bytes))
	require.Equal(t, [4]byte{1, 2, 3, 4}, bytes)
	require.Error(t, decode([]byte{1, 2, 3}, &bytes))

	want := point{At: [3]int{1, 2, 3}, ID: [4]byte{5}, When: time.Unix(7, 0).UTC(), Next: &point{Rows: [][2]float64{{1, 2}}}}
	var back point
	require.NoError(t, decode(want, &back))
	require.Equal(t, want.At, back.At)
	require.Equal(t, want.ID, back.ID)
	require.True(t, want.When.Equal(back.When))
	require.Equal(t, want.Next.Rows, back.Next.Rows)
	for field, value := range map[string]any{
		"At": map[string]any{"At": []int{1}}, "ID": map[string]any{"ID": []byte{1}}, "Rows": map[string]any{"Rows": [][]float64{{1}}},
		"Next": map[string]any{"Next": map[string]any{"At": []int{1, 2, 3, 4}}},
	} {
		require.ErrorContains(t, decode(value, &point{}), field)
	}
	require.ErrorContains(t, decode(map[string]any{"Nowhere": 1}, &point{}), "Nowhere")
}
