package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestKept(t *testing.T) {
	var left, freed []int
	k := NewKept(2, func(v int) { left = append(left, v) }, func(v int) error { freed = append(freed, v); return nil })
	id := Identity{Method: MethodToken, Name: "a"}
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
	k := NewKept(10, func(int) {}, func(v int) error { freed <- v; return nil })
	e, err := k.Add(Identity{Method: MethodNone}, 1, time.Millisecond)
	require.NoError(t, err)
	_, err = k.Add(Identity{Method: MethodNone}, 2, time.Millisecond)
	require.NoError(t, err)
	require.NotNil(t, k.Open(e.ID))
	go k.Run(t.Context(), time.Millisecond)
	require.Equal(t, 2, <-freed, "a value that is read does not expire")
	k.Release(e)
	require.Equal(t, 1, <-freed)
}
