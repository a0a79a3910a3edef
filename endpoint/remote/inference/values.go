package inference

import (
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/sharedtensor/sharedtensor/tensor"
)

var little = binary.LittleEndian

// texts splits BYTES elements. The parts are views of raw.
func texts(raw []byte, n int64) ([][]byte, error) {
	if n > int64(len(raw))/4 {
		return nil, fmt.Errorf("%w: %d elements of BYTES do not fit into %d bytes", ErrInvalid, n, len(raw))
	}
	list := make([][]byte, 0, n)
	for range n {
		if len(raw) < 4 {
			return nil, fmt.Errorf("%w: the BYTES elements end early", ErrInvalid)
		}
		size := little.Uint32(raw)
		if raw = raw[4:]; int64(size) > int64(len(raw)) {
			return nil, fmt.Errorf("%w: a BYTES element has the length %d, but %d bytes are left", ErrInvalid, size, len(raw))
		}
		list = append(list, raw[:size:size])
		raw = raw[size:]
	}
	if len(raw) > 0 {
		return nil, fmt.Errorf("%w: %d bytes after the last BYTES element", ErrInvalid, len(raw))
	}
	return list, nil
}

// appendText appends one element of BYTES.
func appendText(b []byte, text []byte) []byte {
	return append(little.AppendUint32(b, uint32(len(text))), text...)
}

// list decodes numbers to a slice of the matching Go type.
func list(d string, raw []byte) (any, error) {
	switch d {
	case "BOOL":
		return each(raw, 1, func(b []byte) bool { return b[0] != 0 }), nil
	case "UINT8":
		return each(raw, 1, func(b []byte) uint16 { return uint16(b[0]) }), nil // a []uint8 would be treated as bytes
	case "UINT16":
		return each(raw, 2, little.Uint16), nil
	case "UINT32":
		return each(raw, 4, little.Uint32), nil
	case "UINT64":
		return each(raw, 8, little.Uint64), nil
	case "INT8":
		return each(raw, 1, func(b []byte) int8 { return int8(b[0]) }), nil
	case "INT16":
		return each(raw, 2, func(b []byte) int16 { return int16(little.Uint16(b)) }), nil
	case "INT32":
		return each(raw, 4, func(b []byte) int32 { return int32(little.Uint32(b)) }), nil
	case "INT64":
		return each(raw, 8, func(b []byte) int64 { return int64(little.Uint64(b)) }), nil
	case "FP16":
		return each(raw, 2, func(b []byte) float32 { return tensor.F16(little.Uint16(b)).Float32() }), nil
	case "BF16":
		return each(raw, 2, func(b []byte) float32 { return tensor.BF16(little.Uint16(b)).Float32() }), nil
	case "FP32":
		return each(raw, 4, func(b []byte) float32 { return math.Float32frombits(little.Uint32(b)) }), nil
	case "FP64":
		return each(raw, 8, func(b []byte) float64 { return math.Float64frombits(little.Uint64(b)) }), nil
	}
	return nil, fmt.Errorf("%w: the protocol has no datatype %q", ErrInvalid, clip(d))
}

func each[T any](raw []byte, size int, decode func([]byte) T) []T {
	all := make([]T, len(raw)/size)
	for i := range all {
		all[i] = decode(raw[i*size:])
	}
	return all
}

// textList decodes BYTES to what the port declares: byte slices, or strings, which must be UTF-8. A port that declares
// neither receives strings, or byte slices if an element is not UTF-8.
func textList(p port, raw []byte, n int64) (any, error) {
	parts, err := texts(raw, n)
	if err != nil || p.raw {
		return parts, err
	}
	all := make([]string, len(parts))
	for i, part := range parts {
		if !utf8.Valid(part) {
			if p.datatype == "" {
				return parts, nil
			}
			return nil, fmt.Errorf("%w: element %d is not UTF-8, and the function takes texts", ErrInvalid, i)
		}
		all[i] = string(part)
	}
	return all, nil
}

// Kinds of values. Each port accepts one kind.
const (
	truths = 1 << iota
	integers
	floats
	byteTexts
)

func kindOf(d string) int {
	switch d {
	case "BOOL":
		return truths
	case bytesType:
		return byteTexts
	case "FP16", "BF16", "FP32", "FP64":
		return floats
	}
	return integers
}

// takes reports whether a field with datatype want accepts values of datatype got. The function's decoder checks that
// numbers are in range.
func takes(want, got string) bool {
	return want == "" || kindOf(want) == kindOf(got) || kindOf(want) == floats && kindOf(got) == integers
}

// appendValue appends a value of a result as an element with datatype d.
func appendValue(b []byte, d string, v any) ([]byte, error) {
	switch v := v.(type) {
	case bool:
		if d == "BOOL" {
			return append(b, btoi(v)), nil
		}
	case string:
		if d == bytesType {
			return appendText(b, []byte(v)), nil
		}
	case []byte:
		if d == bytesType {
			return appendText(b, v), nil
		}
	case int64:
		return appendInteger(b, d, v, uint64(v), v < 0)
	case uint64:
		return appendInteger(b, d, int64(v), v, false)
	case float64:
		return appendFloat(b, d, v)
	}
	return b, fmt.Errorf("%w: a result of type %T is not %s", ErrNotServed, v, d)
}

func btoi(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// appendInteger appends an integer: i if negative is set, otherwise u. It fails if the value is out of range for d.
func appendInteger(b []byte, d string, i int64, u uint64, negative bool) ([]byte, error) {
	switch kindOf(d) {
	case floats:
		if negative {
			return appendFloat(b, d, float64(i))
		}
		return appendFloat(b, d, float64(u))
	case truths, byteTexts:
		return b, fmt.Errorf("%w: a number is not %s", ErrInvalid, d)
	}
	bits, signed := widthOf(d)
	if signed {
		if !negative && u > math.MaxInt64 || i > 1<<(bits-1)-1 || i < -1<<(bits-1) {
			return b, errInteger(d, i, u, negative)
		}
	} else if negative || bits < 64 && u >= 1<<bits {
		return b, errInteger(d, i, u, negative)
	}
	switch bits {
	case 8:
		return append(b, byte(u)), nil
	case 16:
		return little.AppendUint16(b, uint16(u)), nil
	case 32:
		return little.AppendUint32(b, uint32(u)), nil
	}
	return little.AppendUint64(b, u), nil
}

func errInteger(d string, i int64, u uint64, negative bool) error {
	if negative {
		return errRange(d, i)
	}
	return errRange(d, u)
}

// widthOf returns the width of an integer datatype in bits.
func widthOf(d string) (bits int, signed bool) {
	switch d {
	case "UINT8":
		return 8, false
	case "UINT16":
		return 16, false
	case "UINT32":
		return 32, false
	case "INT8":
		return 8, true
	case "INT16":
		return 16, true
	case "INT32":
		return 32, true
	case "INT64":
		return 64, true
	}
	return 64, false
}

// appendFloat appends the value of d that is nearest to f. It fails if f is finite and beyond the range of d.
func appendFloat(b []byte, d string, f float64) ([]byte, error) {
	outOfRange := func(rounded float32) bool { return math.IsInf(float64(rounded), 0) && !math.IsInf(f, 0) }
	switch d {
	case "FP16":
		h := tensor.NewF16(oddFloat32(f))
		if outOfRange(h.Float32()) {
			return b, errRange(d, f)
		}
		return little.AppendUint16(b, uint16(h)), nil
	case "BF16":
		h := tensor.NewBF16(oddFloat32(f))
		if outOfRange(h.Float32()) {
			return b, errRange(d, f)
		}
		return little.AppendUint16(b, uint16(h)), nil
	case "FP32":
		if outOfRange(float32(f)) {
			return b, errRange(d, f)
		}
		return little.AppendUint32(b, math.Float32bits(float32(f))), nil
	case "FP64":
		return little.AppendUint64(b, math.Float64bits(f)), nil
	}
	if f == math.Trunc(f) && math.Abs(f) < 1<<63 {
		return appendInteger(b, d, int64(f), uint64(int64(f)), f < 0)
	}
	return b, fmt.Errorf("%w: %v is not %s", ErrInvalid, f, d)
}

func errRange(d string, v any) error {
	return fmt.Errorf("%w: %v does not fit into %s", ErrInvalid, v, d)
}

// oddFloat32 rounds f to odd: if f is not a float32, the result is the neighbour of f whose last bit is set. Rounding the
// result to a smaller type is then correct, while rounding twice to nearest is not.
func oddFloat32(f float64) float32 {
	near := float32(f)
	bits := math.Float32bits(near)
	if float64(near) == f || math.IsNaN(f) || bits&1 == 1 {
		return near
	}
	if math.Abs(float64(near)) < math.Abs(f) {
		return math.Float32frombits(bits + 1)
	}
	return math.Float32frombits(bits - 1)
}

// datatypeOfValue returns the datatype of a value whose function does not declare one.
func datatypeOfValue(v any) string {
	switch v.(type) {
	case bool:
		return "BOOL"
	case int64:
		return "INT64"
	case uint64:
		return "UINT64"
	case float64:
		return "FP64"
	}
	return bytesType
}
