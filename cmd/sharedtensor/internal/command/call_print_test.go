package command

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// sample returns a result with values of every kind. The printer takes ownership.
func sample(t *testing.T, dev driver.Device) any {
	x, err := tensor.FromSlice(dev, tensor.Shape{2, 2}, []int64{1, 2, 3, 4})
	require.NoError(t, err)
	turned, err := x.Transpose(0, 1)
	require.NoError(t, err)
	w, err := tensor.FromSlice(dev, tensor.Shape{1}, []float32{0.5})
	require.NoError(t, err)
	sd := module.NewStateDict()
	require.NoError(t, sd.Set("w", w))
	return map[string]any{
		"list": []any{int64(1), "a\x1b", nil}, "model": sd, "nan": math.NaN(), "nest": []any{map[string]any{"x": x}, []any{true}, []any{}},
		"raw": []byte{1, 255}, "text": "two\nlines", "turned": turned, "void": map[string]any{},
	}
}

func TestPrintResults(t *testing.T) {
	drivertest.Leaks(t)
	dev, err := cli.OpenHost()
	require.NoError(t, err)
	defer dev.Close()
	var b bytes.Buffer
	require.NoError(t, printer{w: &b, host: dev}.take(sample(t, dev)))
	require.Equal(t, `list: [1, a\x1b, null]
model:
  state dict of 1 tensor, 4 B
    TENSOR  DTYPE    SHAPE  BYTES
    w       float32  [1]      4 B
nan: NaN
nest:
  -
    x:
      tensor([[1, 2],
              [3, 4]])
  - [true]
  - []
raw: 01ff
text:
  two
  lines
turned:
  tensor([[1, 3],
          [2, 4]])
void:
  {}
`, b.String())

	b.Reset()
	require.NoError(t, printer{w: &b, host: dev, json: true, lines: true}.take(sample(t, dev)))
	require.JSONEq(t, `{"list": [1, "a\u001b", null], "model": {"bytes": 4, "tensors": [{"name": "w", "dtype": "float32", "shape": [1], "bytes": 4}]},
		"nan": "NaN", "nest": [{"x": {"dtype": "int64", "shape": [2, 2], "bytes": 32, "values": [1, 2, 3, 4]}}, [true], []], "raw": "Af8=",
		"text": "two\nlines", "turned": {"dtype": "int64", "shape": [2, 2], "bytes": 32, "values": [1, 3, 2, 4]}, "void": {}}`, b.String())
}

func TestElementsJSON(t *testing.T) {
	drivertest.Leaks(t)
	dev, err := cli.OpenHost()
	require.NoError(t, err)
	defer dev.Close()
	print := func(x *tensor.Tensor, err error) string {
		require.NoError(t, err)
		var b bytes.Buffer
		require.NoError(t, printer{w: &b, host: dev, json: true, lines: true}.take(x))
		return b.String()
	}
	one := tensor.Shape{1}
	require.Contains(t, print(tensor.FromBools(dev, one, []bool{true})), `"values":[true]`)
	require.Contains(t, print(tensor.FromSlice(dev, one, []float32{0.1})), `"values":[0.1]`)
	require.Contains(t, print(tensor.FromSlice(dev, one, []float64{math.Inf(-1)})), `"values":["-Inf"]`)
	require.Contains(t, print(tensor.FromSlice(dev, one, []uint64{math.MaxUint64})), `"values":[18446744073709551615]`)
	require.Contains(t, print(tensor.FromSlice(dev, one, []tensor.BF16{tensor.NewBF16(1.5)})), `"values":[1.5]`)
	for _, x := range []func() (*tensor.Tensor, error){
		func() (*tensor.Tensor, error) { return tensor.FromSlice(dev, one, []int8{-1}) },
		func() (*tensor.Tensor, error) { return tensor.FromSlice(dev, one, []int16{-1}) },
		func() (*tensor.Tensor, error) { return tensor.FromSlice(dev, one, []int32{-1}) },
	} {
		require.Contains(t, print(x()), `"values":[-1]`)
	}
	require.Contains(t, print(tensor.FromSlice(dev, tensor.Shape{}, []uint8{7})), `"shape":[],"bytes":1,"values":[7]`)
	require.NotContains(t, print(tensor.Zeros(dev, tensor.Float32, tensor.Shape{maxJSONElements + 1})), "values")
}

// A block-quantised result is printed without elements, as other types that JSON cannot represent.
func TestJSONOfQuantizedTensor(t *testing.T) {
	t.Parallel()
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	q, err := tensor.Zeros(dev, tensor.Q8_0, []int64{2, 32})
	require.NoError(t, err)
	defer q.Close()
	out, err := printer{host: dev, json: true}.jsonValue(q)
	require.NoError(t, err)
	require.Empty(t, out.(*tensorJSON).Values)
	require.Equal(t, []int64{2, 32}, out.(*tensorJSON).Shape)
}
