//go:build linux

package serve

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/onnx/ort"
)

// tensors returns a request with a state whose batch is dimension 1.
func tensors(rows int64, first float32) map[string]ort.Tensor {
	x := make([]float32, rows*3)
	state := make([]float32, 2*rows)
	for i := range x {
		x[i] = first + float32(i)
	}
	for i := range state {
		state[i] = -first - float32(i)
	}
	return map[string]ort.Tensor{
		"x":     ort.Floats([]int64{rows, 3}, x),
		"state": ort.Floats([]int64{2, rows}, state),
		"rate":  {DType: ort.Uint8, Data: []byte{1}},
	}
}

var testBatch = Batch{"x": 0, "state": 1}

func TestRowsJoinAndSplit(t *testing.T) {
	t.Parallel()
	requests := []map[string]ort.Tensor{tensors(1, 10), tensors(2, 20), tensors(1, 30)}
	var rows []int64
	var keys []string
	for _, r := range requests {
		n, key, err := testBatch.rows(r)
		require.NoError(t, err)
		rows, keys = append(rows, n), append(keys, key)
	}
	require.Equal(t, []int64{1, 2, 1}, rows)
	require.Equal(t, keys[0], keys[1])

	joined := testBatch.join(requests)
	require.Equal(t, []int64{4, 3}, joined["x"].Shape)
	require.Equal(t, []int64{2, 4}, joined["state"].Shape)
	require.Equal(t, []float32{-10, -20, -21, -30, -11, -22, -23, -31}, joined["state"].Float32s())
	require.Equal(t, []float32{10, 11, 12, 20, 21, 22, 23, 24, 25, 30, 31, 32}, joined["x"].Float32s())

	delete(joined, "rate")
	parts, err := testBatch.split(joined, rows)
	require.NoError(t, err)
	for i, part := range parts {
		delete(requests[i], "rate")
		require.Equal(t, requests[i], part)
	}
}

// Requests are combined only if everything but the rows is equal.
func TestRowsKeyDistinguishes(t *testing.T) {
	t.Parallel()
	_, key, err := testBatch.rows(tensors(1, 1))
	require.NoError(t, err)
	rate := tensors(1, 1)
	rate["rate"] = ort.Tensor{DType: ort.Uint8, Data: []byte{2}}
	shape := tensors(1, 1)
	shape["x"] = ort.Floats([]int64{1, 4}, make([]float32, 4))
	missing := tensors(1, 1)
	delete(missing, "state")
	for name, r := range map[string]map[string]ort.Tensor{"another value": rate, "another shape": shape, "an input is missing": missing} {
		_, other, err := testBatch.rows(r)
		require.NoError(t, err)
		require.NotEqual(t, key, other, name)
	}
}

func TestRowsRefusesUnequalInputs(t *testing.T) {
	t.Parallel()
	unequal := tensors(1, 1)
	unequal["state"] = ort.Floats([]int64{2, 2}, make([]float32, 4))
	flat := tensors(1, 1)
	flat["state"] = ort.Floats([]int64{2}, make([]float32, 2))
	for _, r := range []map[string]ort.Tensor{unequal, flat} {
		_, _, err := testBatch.rows(r)
		require.ErrorIs(t, err, errInput)
	}
	_, err := testBatch.split(map[string]ort.Tensor{"x": ort.Floats([]int64{2, 3}, make([]float32, 6))}, []int64{1, 2})
	require.ErrorContains(t, err, "the batch 3 rows")
}

func TestParseBatch(t *testing.T) {
	t.Parallel()
	b, err := ParseBatch("x=0,state=1")
	require.NoError(t, err)
	require.Equal(t, testBatch, b)
	for _, text := range []string{"x", "x=", "x=-1", "=1", "x=a"} {
		_, err := ParseBatch(text)
		require.Error(t, err, text)
	}
}

func TestBodyRoundTrip(t *testing.T) {
	t.Parallel()
	want := tensors(2, 5)
	body, err := EncodeTensors(want)
	require.NoError(t, err)
	got, err := DecodeTensors(body)
	require.NoError(t, err)
	require.Len(t, got, len(want))
	for name := range want {
		require.Equal(t, want[name].Data, got[name].Data, name)
		require.ElementsMatch(t, want[name].Shape, got[name].Shape, name)
	}
	_, err = DecodeTensors(body[:len(body)-1])
	require.ErrorIs(t, err, errInput)
}
