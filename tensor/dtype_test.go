package tensor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// The numbers are part of the protocol: a change here breaks every peer.
func TestDTypeIsPinned(t *testing.T) {
	t.Parallel()
	rows := []struct {
		dtype  tensor.DType
		number uint8
		name   string
		bits   int
		code   uint8
	}{
		{tensor.Bool, 1, "bool", 8, 6},
		{tensor.Uint8, 2, "uint8", 8, 1},
		{tensor.Int8, 3, "int8", 8, 0},
		{tensor.Int16, 4, "int16", 16, 0},
		{tensor.Uint16, 5, "uint16", 16, 1},
		{tensor.Int32, 6, "int32", 32, 0},
		{tensor.Uint32, 7, "uint32", 32, 1},
		{tensor.Int64, 8, "int64", 64, 0},
		{tensor.Uint64, 9, "uint64", 64, 1},
		{tensor.Float16, 10, "float16", 16, 2},
		{tensor.BFloat16, 11, "bfloat16", 16, 4},
		{tensor.Float32, 12, "float32", 32, 2},
		{tensor.Float64, 13, "float64", 64, 2},
		{tensor.Complex64, 14, "complex64", 64, 5},
		{tensor.Complex128, 15, "complex128", 128, 5},
		{tensor.Float8E4M3FN, 16, "float8_e4m3fn", 8, 10},
		{tensor.Float8E5M2, 17, "float8_e5m2", 8, 12},
		{tensor.Float8E8M0FNU, 18, "float8_e8m0fnu", 8, 14},
		{tensor.Float8E4M3FNUZ, 19, "float8_e4m3fnuz", 8, 11},
		{tensor.Float8E5M2FNUZ, 20, "float8_e5m2fnuz", 8, 13},
		{tensor.Float6E2M3FN, 21, "float6_e2m3fn", 6, 15},
		{tensor.Float6E3M2FN, 22, "float6_e3m2fn", 6, 16},
		{tensor.Float4E2M1FN, 23, "float4_e2m1fn", 4, 17},
	}
	require.Len(t, tensor.DTypes(), len(rows))
	for i, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			require.Equal(t, row.dtype, tensor.DTypes()[i])
			require.Equal(t, row.number, uint8(row.dtype))
			require.Equal(t, row.name, row.dtype.String())
			require.Equal(t, row.bits, row.dtype.BitSize())
			require.True(t, row.dtype.Valid())
			code, bits, lanes := row.dtype.DLPack()
			require.Equal(t, [3]int{int(row.code), row.bits, 1}, [3]int{int(code), int(bits), int(lanes)})
			back, err := tensor.FromDLPack(code, bits, lanes)
			require.NoError(t, err)
			require.Equal(t, row.dtype, back)
			for _, name := range []string{row.name, "torch." + row.name} {
				back, err = tensor.ParseDType(name)
				require.NoError(t, err)
				require.Equal(t, row.dtype, back)
			}
		})
	}
}

func TestDTypeInvalid(t *testing.T) {
	t.Parallel()
	for _, d := range []tensor.DType{0, 24, 255} {
		require.False(t, d.Valid())
		require.Zero(t, d.BitSize())
		require.Contains(t, d.String(), "dtype(")
		require.False(t, d.IsFloat() || d.IsComplex() || d.IsInteger())
		code, bits, lanes := d.DLPack()
		require.Zero(t, int(code)+int(bits)+int(lanes))
	}
	for _, name := range []string{"", "float", "F32", "float4_e2m1fn_x2", "torch.torch.int8"} {
		_, err := tensor.ParseDType(name)
		require.ErrorIs(t, err, tensor.ErrDType)
	}
	for _, triple := range [][3]int{{2, 32, 4}, {2, 128, 1}, {99, 8, 1}, {0, 0, 0}} {
		_, err := tensor.FromDLPack(uint8(triple[0]), uint8(triple[1]), uint16(triple[2]))
		require.ErrorIs(t, err, tensor.ErrDType)
	}
	require.True(t, tensor.BFloat16.IsFloat() && tensor.Complex64.IsComplex() && tensor.Uint16.IsInteger())
	require.False(t, tensor.Bool.IsInteger())
}

func TestDTypeOf(t *testing.T) {
	t.Parallel()
	require.Equal(t, tensor.Uint8, tensor.DTypeOf[uint8]())
	require.Equal(t, tensor.Int8, tensor.DTypeOf[int8]())
	require.Equal(t, tensor.Int16, tensor.DTypeOf[int16]())
	require.Equal(t, tensor.Uint16, tensor.DTypeOf[uint16]())
	require.Equal(t, tensor.Int32, tensor.DTypeOf[int32]())
	require.Equal(t, tensor.Uint32, tensor.DTypeOf[uint32]())
	require.Equal(t, tensor.Int64, tensor.DTypeOf[int64]())
	require.Equal(t, tensor.Uint64, tensor.DTypeOf[uint64]())
	require.Equal(t, tensor.Float32, tensor.DTypeOf[float32]())
	require.Equal(t, tensor.Float64, tensor.DTypeOf[float64]())
	require.Equal(t, tensor.Complex64, tensor.DTypeOf[complex64]())
	require.Equal(t, tensor.Complex128, tensor.DTypeOf[complex128]())
	require.Equal(t, tensor.Float16, tensor.DTypeOf[tensor.F16]())
	require.Equal(t, tensor.BFloat16, tensor.DTypeOf[tensor.BF16]())
	require.Equal(t, tensor.Float8E4M3FN, tensor.DTypeOf[tensor.F8E4M3FN]())
	require.Equal(t, tensor.Float8E5M2, tensor.DTypeOf[tensor.F8E5M2]())
	require.Equal(t, tensor.Float8E8M0FNU, tensor.DTypeOf[tensor.F8E8M0FNU]())
	require.Equal(t, tensor.Float8E4M3FNUZ, tensor.DTypeOf[tensor.F8E4M3FNUZ]())
	require.Equal(t, tensor.Float8E5M2FNUZ, tensor.DTypeOf[tensor.F8E5M2FNUZ]())
}
