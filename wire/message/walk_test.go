package message

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWalk(t *testing.T) {
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
	for n := range len(list) { // what is cut off has fewer items, and never one that is not there
		require.Less(t, len(slices.Collect(Items(list[:n]))), 4)
	}
	require.Empty(t, slices.Collect(Items(items[3])))
	for range Pairs(list) {
		t.Fatal("a list has no pairs")
	}
}

// TestMessagesThatDoNotFitAreToldWithoutGo refuses a message with an item that does not fit: by its key, without the
// names that the codec gives to things. (D27)
func TestMessagesThatDoNotFitAreToldWithoutGo(t *testing.T) {
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
