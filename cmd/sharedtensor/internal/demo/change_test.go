package demo

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestTurnSigns(t *testing.T) {
	for _, c := range []struct {
		dtype tensor.DType
		want  []byte
	}{
		{tensor.Float32, []byte{1, 1, 1, 0x81, 1, 1, 1, 0x81}},
		{tensor.BFloat16, []byte{1, 0x81, 1, 0x81, 1, 0x81, 1, 0x81}},
		{tensor.Float64, []byte{1, 1, 1, 1, 1, 1, 1, 0x81}},
		{tensor.Int8, []byte{0x81, 0x81, 0x81, 0x81, 0x81, 0x81, 0x81, 0x81}},
		{tensor.Bool, []byte{0, 0, 0, 0, 0, 0, 0, 0}},
		{tensor.Float4E2M1FN, []byte{0x81, 0x81, 0x81, 0x81, 0x81, 0x81, 0x81, 0x81}},
	} {
		data := []byte{1, 1, 1, 1, 1, 1, 1, 1}
		turnSigns(data, c.dtype)
		require.Equal(t, c.want, data, c.dtype.String())
	}
}
