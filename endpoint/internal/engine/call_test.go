package engine_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestCall(t *testing.T) {
	drivertest.Leaks(t)
	c, dev, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	n, err := endpoint.Call[int](ctx, c, "double", struct{ N int }{21})
	require.NoError(t, err)
	require.Equal(t, 42, n)

	x, err := tensor.FromSlice(dev, tensor.Shape{2, 2}, []float32{1, 2, 3, 4})
	require.NoError(t, err)
	defer x.Close()
	half, err := x.Select(0, 1)
	require.NoError(t, err)
	y, err := endpoint.Call[*tensor.Tensor](ctx, c, "scale", fixture.ScaleIn{X: half, By: 10})
	require.NoError(t, err)
	defer y.Close()
	values, err := tensor.Float32s(y)
	require.NoError(t, err)
	require.Equal(t, []float32{30, 40}, values)
}

func TestCallContainersRoundTrip(t *testing.T) {
	drivertest.Leaks(t)
	c, dev, _ := fixture.ClientOfOwner(t)
	x, err := tensor.FromSlice(dev, tensor.Shape{3}, []float32{1, 2, 3})
	require.NoError(t, err)
	defer x.Close()
	in := fixture.NestedIn{
		List: []map[string]*tensor.Tensor{{"a": x}, {"b": x}},
		Any:  map[string]any{"t": x, "n": int64(-5), "s": []any{"x", nil, true, 1.5}},
	}
	out, err := endpoint.Call[fixture.NestedOut](context.Background(), c, "nested", in)
	require.NoError(t, err)
	defer out.Model.Close()
	require.Equal(t, []float64{6, 6}, out.Sums)
	require.Len(t, out.Model.Storages(), 1, "one storage crossed, once")
	same := out.Same.(map[string]any)
	defer same["t"].(*tensor.Tensor).Close()
	require.EqualValues(t, -5, same["n"])
	require.Equal(t, []any{"x", nil, true, 1.5}, same["s"])

	// The memory is shared: a write here is visible through the other process's tensor.
	other, err := tensor.FromSlice(dev, tensor.Shape{3}, []float32{100, 101, 102})
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, x.CopyFrom(other))
	back, err := tensor.Float32s(same["t"].(*tensor.Tensor))
	require.NoError(t, err)
	require.Equal(t, []float32{100, 101, 102}, back)
}

func TestCallErrors(t *testing.T) {
	t.Parallel()
	c, _, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	require.ErrorIs(t, c.Call(ctx, "nothing", nil, nil), endpoint.ErrNoEndpoint)
	require.ErrorIs(t, c.Call(ctx, "fail", nil, nil), driver.ErrOutOfMemory)
	err := c.Call(ctx, "panic", nil, nil)
	require.ErrorContains(t, err, "no way")
	require.ErrorContains(t, err, `endpoint "panic"`)
	require.ErrorContains(t, c.Call(ctx, "double", struct{ M int }{1}, nil), `no field "M"`, "a misspelt argument is no default")
	require.ErrorIs(t, c.Call(ctx, "count", struct{ To int }{1}, nil), endpoint.ErrInvalid)
	require.NoError(t, c.Call(ctx, "double", struct{ N int }{1}, nil), "the owner goes on")
}

func TestStream(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	next := float32(0)
	for x, err := range endpoint.Stream[*tensor.Tensor](ctx, c, "count", struct{ To int }{100}) {
		require.NoError(t, err)
		v, err := tensor.Item[float32](x)
		require.NoError(t, err)
		require.Equal(t, next, v)
		next++
		x.Close()
	}
	require.EqualValues(t, 100, next)

	var last error
	for x, err := range endpoint.Stream[*tensor.Tensor](ctx, c, "count", struct{ To int }{7}) {
		if last = err; err == nil {
			x.Close()
		}
	}
	require.ErrorContains(t, last, "seven is enough")

	for x, err := range endpoint.Stream[*tensor.Tensor](ctx, c, "count", struct{ To int }{1_000_000}) {
		require.NoError(t, err)
		x.Close()
		break
	}
	require.Eventually(t, func() bool { return o.Ran("left") == 1 }, fixture.WaitLimit, fixture.Tick,
		"the function is told to stop")
}

func TestCallSharesResult(t *testing.T) {
	t.Parallel()
	c, _, o := fixture.ClientOfOwner(t)
	for _, n := range []int{2, 21, 2, 21, 2} {
		got, err := endpoint.Call[int](context.Background(), c, "double", struct{ N int }{n})
		require.NoError(t, err)
		require.Equal(t, 2*n, got)
	}
	require.EqualValues(t, 2, o.Ran("double"))
}
