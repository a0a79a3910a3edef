package endpoint_test

import (
	"context"
	"errors"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// standIn answers a program's calls in a test of the program, without an owner.
type standIn struct{}

func (standIn) Call(_ context.Context, name string, in, out any) error {
	if name != "double" {
		return endpoint.ErrNoEndpoint
	}
	*out.(*int) = 2 * in.(int)
	return nil
}

func (standIn) Stream(_ context.Context, _ string, in any) iter.Seq2[func(out any) error, error] {
	return func(yield func(func(any) error, error) bool) {
		for i := range in.(int) {
			if !yield(func(out any) error { *out.(*int) = i; return nil }, nil) {
				return
			}
		}
		yield(nil, errors.New("that is all"))
	}
}

// A program's implementation replaces a client wherever a Caller is accepted.
func TestCallerImplementedByProgram(t *testing.T) {
	t.Parallel()
	var c endpoint.Calls = standIn{}
	got, err := endpoint.Stub[int, int](c, "double")(t.Context(), 21)
	require.NoError(t, err)
	require.Equal(t, 42, got)
	_, err = endpoint.Call[int](t.Context(), c, "triple", 21)
	require.ErrorIs(t, err, endpoint.ErrNoEndpoint)
	var items []int
	for i, err := range endpoint.Stream[int](t.Context(), c, "count", 3) {
		if err != nil {
			require.EqualError(t, err, "that is all")
			break
		}
		items = append(items, i)
	}
	require.Equal(t, []int{0, 1, 2}, items)
}
