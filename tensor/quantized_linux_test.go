package tensor_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// Blocks have the sizes of ggml-common.h, and numbers are ggml_type plus 64: a change breaks every peer.
func TestQuantizedDTypesArePinned(t *testing.T) {
	t.Parallel()
	want := map[tensor.DType][2]int{
		66: {32, 18}, 67: {32, 20}, 70: {32, 22}, 71: {32, 24}, 72: {32, 34}, 73: {32, 36}, 74: {256, 84}, 75: {256, 110}, 76: {256, 144},
		77: {256, 176}, 78: {256, 210}, 79: {256, 292}, 80: {256, 66}, 81: {256, 74}, 82: {256, 98}, 83: {256, 50}, 84: {32, 18},
		85: {256, 110}, 86: {256, 82}, 87: {256, 136}, 93: {256, 56}, 98: {256, 54}, 99: {256, 66}, 103: {32, 17}, 104: {64, 36}, 105: {128, 18},
		106: {64, 18},
	}
	all := tensor.QuantizedDTypes()
	require.Len(t, all, len(want))
	for _, dt := range all {
		elements, bytes := dt.Block()
		require.Equal(t, want[dt], [2]int{elements, bytes}, dt)
		require.True(t, dt.Valid() && dt.Quantized())
		require.False(t, dt.IsFloat() || dt.IsInteger() || dt.IsComplex())
		require.Zero(t, dt.BitSize())
		code, bits, lanes := dt.DLPack()
		require.Zero(t, int(code)+int(bits)+int(lanes))
		parsed, err := tensor.ParseDType(dt.String())
		require.NoError(t, err)
		require.Equal(t, dt, parsed)
	}
	for dt, want := range map[tensor.DType][2]int{tensor.Float32: {1, 4}, tensor.Float4E2M1FN: {2, 1}, tensor.Float6E2M3FN: {4, 3}, 0: {0, 0}, 65: {0, 0}} {
		elements, bytes := dt.Block()
		require.Equal(t, want, [2]int{elements, bytes}, dt)
	}
}

func TestQuantizedSpec(t *testing.T) {
	t.Parallel()
	spec := tensor.Spec{DType: tensor.Q4_0, Shape: tensor.Shape{3, 64}}
	n, err := spec.Extent()
	require.NoError(t, err)
	require.Equal(t, int64(3*2*18), n)
	require.NoError(t, spec.Validate(108))
	require.ErrorIs(t, spec.Validate(107), tensor.ErrBounds)
	spec.Strides = tensor.Strides{64, 1}
	require.NoError(t, spec.Validate(108))
	for _, bad := range []tensor.Spec{
		{DType: tensor.Q4_0, Shape: tensor.Shape{3, 48}}, {DType: tensor.Q4_0, Shape: tensor.Shape{}},
		{DType: tensor.Q4_0, Shape: tensor.Shape{32}, Strides: tensor.Strides{1, 1}},
	} {
		require.ErrorIs(t, bad.Validate(1<<20), tensor.ErrShape)
	}
	transposed := tensor.Spec{DType: tensor.Q4_0, Shape: tensor.Shape{32, 32}, Strides: tensor.Strides{1, 32}}
	require.ErrorIs(t, transposed.Validate(1<<20), tensor.ErrNotContiguous)
	require.ErrorIs(t, tensor.Spec{DType: tensor.Q4_0, Shape: tensor.Shape{1 << 62, 32}}.Validate(1<<40), tensor.ErrOverflow)
}

// Views of whole blocks share memory, other views and conversions are refused.
func TestQuantizedViews(t *testing.T) {
	t.Parallel()
	dev := openHost(t)
	x, err := tensor.Empty(dev, tensor.Q8_0, tensor.Shape{4, 64})
	require.NoError(t, err)
	defer x.Close()
	raw := make([]byte, 4*2*34)
	for i := range raw {
		raw[i] = byte(i)
	}
	require.NoError(t, x.FillFrom(bytes.NewReader(raw)))
	row, err := x.Select(0, 2)
	require.NoError(t, err)
	got, err := row.ReadBytes()
	require.NoError(t, err)
	require.Equal(t, raw[2*68:3*68], got)
	require.NoError(t, row.Close())
	flat, err := x.View(tensor.Uint8)
	require.NoError(t, err)
	require.Equal(t, tensor.Shape{4, 68}, flat.Shape())
	back, err := flat.View(tensor.Q8_0)
	require.NoError(t, err)
	require.Equal(t, tensor.Shape{4, 64}, back.Shape())
	require.NoError(t, back.Close())
	_, err = flat.View(tensor.Q4_K)
	require.ErrorIs(t, err, tensor.ErrNotView)
	require.NoError(t, flat.Close())
	_, err = x.View(tensor.Float32)
	require.ErrorIs(t, err, tensor.ErrNotView)
	_, err = x.Narrow(1, 0, 32)
	require.ErrorIs(t, err, tensor.ErrNotContiguous)
	_, err = x.Narrow(1, 16, 32)
	require.ErrorIs(t, err, tensor.ErrNotView)
	_, err = x.To(nil, tensor.Float32)
	require.ErrorIs(t, err, tensor.ErrDType)
	_, err = tensor.Float32s(x)
	require.ErrorIs(t, err, tensor.ErrDType)
	_, err = x.AllClose(x, tensor.DefaultTolerance)
	require.ErrorIs(t, err, tensor.ErrDType)
	require.Contains(t, x.String(), "in blocks")
	require.Contains(t, x.String(), "q8_0")
	copied, err := x.Copy(nil)
	require.NoError(t, err)
	got, err = copied.ReadBytes()
	require.NoError(t, err)
	require.Equal(t, raw, got)
	require.NoError(t, copied.Close())
}
