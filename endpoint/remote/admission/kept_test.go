package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

func TestKept(t *testing.T) {
	var left, freed []int
	k := NewKept(2, nil, func(v int) { left = append(left, v) }, func(v int) error { freed = append(freed, v); return nil })
	id := rights.Identity{Method: rights.MethodToken, Name: "a"}
	e, err := k.Add(id, 1, time.Minute)
	require.NoError(t, err)
	_, err = k.Add(id, 2, time.Minute)
	require.ErrorIs(t, err, ErrLimit, "one identity has half of the slots")
	require.Empty(t, left)

	require.Nil(t, k.Open("other"))
	require.Same(t, e, k.Open(e.ID))
	found, err := k.Remove(e.ID)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, []int{1}, left)
	require.Empty(t, freed, "it is still read")
	k.Release(e)
	require.Equal(t, []int{1}, freed)
	found, err = k.Remove(e.ID)
	require.NoError(t, err)
	require.False(t, found)

	_, err = k.Add(id, 3, time.Minute)
	require.NoError(t, err)
	require.NoError(t, k.Close())
	require.Equal(t, []int{1, 3}, freed)
	_, err = k.Add(id, 4, time.Minute)
	require.ErrorIs(t, err, ErrStopping)
}

func TestKeptValuesExpire(t *testing.T) {
	freed := make(chan int, 2)
	k := NewKept(10, nil, func(int) {}, func(v int) error { freed <- v; return nil })
	e, err := k.Add(rights.Identity{Method: rights.MethodNone}, 1, time.Millisecond)
	require.NoError(t, err)
	if k.Open(e.ID) == nil {
		t.Skip("the value expired before it was used") // the machine was busy for longer than it lasts
	}
	_, err = k.Add(rights.Identity{Method: rights.MethodNone}, 2, time.Millisecond)
	require.NoError(t, err)
	require.Equal(t, 2, <-freed, "a value that is read does not expire")
	k.Release(e)
	require.Equal(t, 1, <-freed)
}

// A store that evicts removes the value that was unused the longest, separately for each identity, and none in use.
func TestKeptEvicts(t *testing.T) {
	t.Parallel()
	var freed []int
	k := NewEvicting(Evict{Values: 2, Weight: 10}, nil, func(v int) error { freed = append(freed, v); return nil })
	a, b := rights.Identity{Method: rights.MethodToken, Name: "a"}, rights.Identity{Method: rights.MethodToken, Name: "b"}
	keep := func(id rights.Identity, key string, value int, weight int64) {
		e, err := k.Use(id, key, value, weight, 0)
		require.NoError(t, err)
		k.Release(e)
	}
	keep(a, "1", 1, 1)
	keep(a, "2", 2, 1)
	k.Release(k.Open("1")) // the most recently used one now
	keep(b, "3", 3, 1)
	keep(a, "4", 4, 1)
	require.Equal(t, []int{2}, freed)
	keep(a, "5", 5, 9)
	require.Equal(t, []int{2, 1}, freed)
	keep(a, "6", 6, 2)
	require.Equal(t, []int{2, 1, 4, 5}, freed, "their weight is too large")
	used := k.Open("6")
	keep(a, "7", 7, 11)
	require.Equal(t, []int{2, 1, 4, 5, 7}, freed, "it is too large alone")
	_, found := k.Peek("6")
	require.True(t, found, "it is in use")
	k.Drop(used)
	require.Nil(t, k.Open("6"))
	k.Release(used)
	require.NoError(t, k.Close())
	require.Equal(t, []int{2, 1, 4, 5, 7, 6, 3}, freed)
}
