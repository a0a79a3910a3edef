package safetensors

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// dtypes holds the format's names in the order of the reference implementation's Dtype enum
// (safetensors/src/tensor.rs), which is the order of increasing alignment. Its writer sorts in the reverse order.
var dtypes = [...]struct {
	name  string
	dtype tensor.DType
}{
	{"BOOL", tensor.Bool},
	{"F4", tensor.Float4E2M1FN},
	{"F6_E2M3", tensor.Float6E2M3FN},
	{"F6_E3M2", tensor.Float6E3M2FN},
	{"U8", tensor.Uint8},
	{"I8", tensor.Int8},
	{"F8_E5M2", tensor.Float8E5M2},
	{"F8_E4M3", tensor.Float8E4M3FN},
	{"F8_E8M0", tensor.Float8E8M0FNU},
	{"F8_E4M3FNUZ", tensor.Float8E4M3FNUZ},
	{"F8_E5M2FNUZ", tensor.Float8E5M2FNUZ},
	{"I16", tensor.Int16},
	{"U16", tensor.Uint16},
	{"F16", tensor.Float16},
	{"BF16", tensor.BFloat16},
	{"I32", tensor.Int32},
	{"U32", tensor.Uint32},
	{"F32", tensor.Float32},
	{"C64", tensor.Complex64},
	{"F64", tensor.Float64},
	{"I64", tensor.Int64},
	{"U64", tensor.Uint64},
}

// rank returns the position of a dtype in the reference implementation's order, or -1.
func rank(dt tensor.DType) int {
	for i, d := range dtypes {
		if d.dtype == dt {
			return i
		}
	}
	return -1
}

// Name returns the format's name for a dtype, such as "F32" or "BF16". An unsupported dtype is [ErrDType].
func Name(dt tensor.DType) (string, error) {
	if i := rank(dt); i >= 0 {
		return dtypes[i].name, nil
	}
	return "", fmt.Errorf("%w: the format has no name for %s", ErrDType, dt)
}

// ParseDType returns the dtype with the format's name, which is case-sensitive. An unknown name is [ErrDType].
func ParseDType(name string) (tensor.DType, error) {
	for _, d := range dtypes {
		if d.name == name {
			return d.dtype, nil
		}
	}
	return 0, fmt.Errorf("%w: %s", ErrDType, quote(name))
}
