package message

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWalk(t *testing.T) {
	t.Parallel()
	list, err := MarshalPayload([]any{1, "two", []int{3, 4}, map[string]int{"a": 1}})
	require.NoError(t, err)
	items := slices.Collect(Items(list))
	require.Len(t, items, 4)
	text, ok := Text(items[1])
	require.True(t, ok)
	require.Equal(t, "two", string(text))
	_, ok = Text(items[0])
	require.False(t, ok)
	require.Len(t, slices.Collect(Items(items[2])), 2)
	require.Len(t, maps.Collect(func(yield func(string, int) bool) {
		for k, v := range Pairs(items[3]) {
			if !yield(string(k), len(v)) {
				return
			}
		}
	}), 1)
	for n := range len(list) { // truncated data has fewer items and no wrong ones
		require.Less(t, len(slices.Collect(Items(list[:n]))), 4)
	}
	require.Empty(t, slices.Collect(Items(items[3])))
	for range Pairs(list) {
		t.Fatal("a list has no pairs")
	}
}

// A message with an item of the wrong type is refused by its key, without the codec's names of types.
func TestMessagesThatDoNotFitAreToldWithoutGo(t *testing.T) {
	t.Parallel()
	type message struct {
		Name    string `cbor:"1,keyasint"`
		Version uint64 `cbor:"2,keyasint"`
	}
	raw, err := Marshal(map[int]any{1: "m", 2: []int{1}})
	require.NoError(t, err)
	err = Unmarshal(raw, &message{})
	require.ErrorIs(t, err, ErrEncoding)
	require.EqualError(t, err, "bad encoding: an item of type array under the key 2, where uint64 belongs")
}
