package codec

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// TensorSpec is the declared type of a tensor in an argument or a result.
type TensorSpec struct {
	// DType is the type of elements; 0 for any.
	DType tensor.DType
	// Shape contains the sizes of the dimensions; -1 for any size. nil means any shape.
	Shape []int64
}

// ParseTensorSpec parses a declaration such as "float32[-1,3,224,224]", "float32" or "[-1,3]". It checks that the size of
// each dimension is at least -1.
func ParseTensorSpec(text string) (s TensorSpec, err error) {
	name, rest, hasShape := strings.Cut(text, "[")
	if name != "" {
		if s.DType, err = tensor.ParseDType(name); err != nil {
			return s, fmt.Errorf("%w: the tensor %q: %w", status.ErrInvalid, text, err)
		}
	}
	if !hasShape {
		if name == "" {
			return s, fmt.Errorf("%w: an empty declaration of a tensor", status.ErrInvalid)
		}
		return s, nil
	}
	inner, closed := strings.CutSuffix(rest, "]")
	if !closed || len(text) > DescribedBytes {
		return s, fmt.Errorf(`%w: the tensor %q: declare it as "float32[-1,3]"`, status.ErrInvalid, status.ShortText(text, DescribedBytes))
	}
	s.Shape = []int64{}
	if strings.TrimSpace(inner) == "" {
		return s, nil
	}
	for one := range strings.SplitSeq(inner, ",") {
		size, err := strconv.ParseInt(strings.TrimSpace(one), 10, 64)
		if err != nil || size < -1 {
			return s, fmt.Errorf("%w: the tensor %q: the size %q is neither a number nor -1", status.ErrInvalid, text, one)
		}
		s.Shape = append(s.Shape, size)
	}
	return s, nil
}

// String returns the declaration.
func (s TensorSpec) String() string {
	text := ""
	if s.DType != 0 {
		text = s.DType.String()
	}
	if s.Shape == nil {
		return text
	}
	sizes := make([]string, len(s.Shape))
	for i, n := range s.Shape {
		sizes[i] = strconv.FormatInt(n, 10)
	}
	return text + "[" + strings.Join(sizes, ",") + "]"
}

// MarshalText implements encoding.TextMarshaler, so that JSON has the declaration as a text.
func (s TensorSpec) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *TensorSpec) UnmarshalText(text []byte) (err error) {
	*s, err = ParseTensorSpec(string(text))
	return err
}

// specOf returns the declaration in the tag of a field, in its canonical form. It is empty if there is none.
func specOf(f field, path string) (string, error) {
	if f.spec == "" {
		return "", nil
	}
	if f.typ != tensorType {
		return "", fmt.Errorf("%w: %s.%s has the tag tensor:%q, but is no tensor", status.ErrInvalid, path, f.name, f.spec)
	}
	s, err := ParseTensorSpec(f.spec)
	if err != nil {
		return "", fmt.Errorf("%s.%s: %w", path, f.name, err)
	}
	return s.String(), nil
}
