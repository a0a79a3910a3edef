package codec

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

type layerIn struct {
	Name string  `json:"name"`
	Rate float32 `json:"rate"`
}

type DepthIn struct {
	Depth int `json:"depth"`
}

type trainIn struct {
	X      *tensor.Tensor     `json:"x"`
	Mask   *tensor.Tensor     `json:"mask,omitempty"`
	Model  *module.StateDict  `json:"model,omitempty"`
	Steps  int8               `json:"steps"`
	Seed   *int               `json:"seed"`
	Note   string             `json:"note,omitempty"`
	Layers []layerIn          `json:"layers,omitempty"`
	Rates  map[string]float32 `json:"rates,omitempty"`
	*DepthIn
}

type plainIn struct {
	Steps  int8               `json:"steps"`
	Until  time.Time          `json:"until,omitempty"`
	Layers []layerIn          `json:"layers,omitempty"`
	Rates  map[string]float32 `json:"rates,omitempty"`
	Best   *layerIn           `json:"best,omitempty"`
	Data   []byte             `json:"data,omitempty"`
	On     bool               `json:"on,omitempty"`
}

// fields are the fields of an argument.
type fields = map[string]any

// The error for an invalid argument names the field, the expected type and the received value. Missing fields and
// tensors are refused unless they are optional.
func TestMismatchErrors(t *testing.T) {
	drivertest.Leaks(t)
	x := vector(t, hostDevice(t), 1, 2)
	layer := fields{"name": "a", "rate": 0.5}
	for _, test := range []struct {
		in   any
		want string // text of the error; "" for no error
	}{
		{fields{"x": x, "steps": 1}, ""},
		{fields{"x": x, "steps": 1, "mask": nil, "seed": nil, "layers": nil, "depth": 3}, ""},
		{fields{"steps": 1}, "field x: it is missing; expected a tensor"},
		{fields{"x": nil, "steps": 1}, "field x: it is missing; expected a tensor"},
		{fields{"x": x}, "field steps: it is missing; expected an integer (int8)"},
		{fields{"x": x, "steps": nil}, "field steps: it is missing; expected an integer (int8)"},
		{fields{"x": []int{1, 2, 3}, "steps": 1}, "field x: expected a tensor, got a list of 3"},
		{fields{"x": x, "steps": 1, "model": x}, "field model: expected a state dict, got a tensor"},
		{fields{"x": x, "steps": 300}, "field steps: the number 300 does not fit an integer (int8)"},
		{fields{"x": x, "steps": "many"}, `field steps: expected an integer (int8), got the text "many"`},
		{fields{"x": x, "steps": strings.Repeat("y", 100)}, `got the text "` + strings.Repeat("y", 29) + `…"`},
		{fields{"x": x, "steps": x}, "field steps: expected an integer (int8), got a tensor"},
		{fields{"x": x, "steps": 1, "layers": []any{layer, fields{"name": 7, "rate": 1}}}, "field layers[1].name: expected a text, got the number 7"},
		{fields{"x": x, "steps": 1, "layers": []any{layer, fields{"name": "b"}}}, "field layers[1].rate: it is missing; expected a number (float32)"},
		{fields{"x": x, "steps": 1, "rates": fields{"a": true}}, `field rates["a"]: expected a number (float32), got true`},
		{fields{"x": x, "stepps": 1}, `there is no field "stepps"; expected a map with the fields x, mask, model, steps`},
		{[]int{1}, "expected a map with the fields x, mask"},
		{nil, "field x: it is missing"},
	} {
		decodesTo(t, test.in, new(trainIn), test.want)
	}
	for _, test := range []struct {
		in   any
		want string
	}{
		{fields{"steps": -1}, ""},
		{fields{"steps": 1, "best": layer, "layers": []any{layer}, "rates": fields{"a": 1}, "data": []byte{1}}, ""},
		{fields{}, "field steps: it is missing; expected an integer (int8)"},
		{nil, "field steps: it is missing"},
		{fields{"steps": nil}, "field steps: it is missing"},
		{fields{"steps": 1.5}, "field steps: the number 1.5 does not fit an integer (int8)"},
		{fields{"steps": 1, "best": fields{"rate": 1}}, "field best.name: it is missing; expected a text"},
		{fields{"steps": 1, "layers": []any{fields{"name": "a"}}}, "field layers[0].rate: it is missing"},
		{fields{"steps": 1, "layers": fields{}}, "field layers: expected a list, got a map"},
		{fields{"steps": 1, "rates": []int{1, 2}}, "field rates: expected a map, got a list of 2"},
		{fields{"steps": 1, "until": 7.5e300}, "field until: expected a time, got the number 7.5e+300"},
		{fields{"steps": 1, "data": "text"}, `field data: expected bytes, got the text "text"`},
		{fields{"steps": 1, "on": 1}, "field on: expected true or false, got the number 1"},
		{fields{"steps": 1, "best": fields{"name": "a", "rate": 1, "x": 1}}, `field best: there is no field "x"; expected a map with the fields name, rate`},
		{"text", `expected a map with the fields steps, until, layers, rates, best, data, on, got the text "text"`},
	} {
		decodesTo(t, test.in, new(plainIn), test.want)
	}
	decodesTo(t, nil, new(int), "expected an integer (int), got nothing")
	decodesTo(t, nil, new(*tensor.Tensor), "expected a tensor, got nothing")
	decodesTo(t, "x", new(*tensor.Tensor), `expected a tensor, got the text "x"`)
	decodesTo(t, nil, new([]int), "")
	decodesTo(t, nil, new(struct{}), "")
}

// decodesTo decodes a value as an argument and checks that it fails with the error want, or succeeds if want is "".
func decodesTo(t *testing.T, in, out any, want string) {
	t.Helper()
	p, err := EncodePayload(in)
	require.NoError(t, err)
	defer p.Close()
	made, err := DecodePayload(p.Value, p.Storages, out, true)
	defer CloseAll(made)
	if want == "" {
		require.NoError(t, err, "%v", in)
		return
	}
	require.ErrorIs(t, err, message.ErrEncoding, "%v", in)
	require.ErrorContains(t, err, want)
	require.NotContains(t, err.Error(), "cbor")
	require.NotContains(t, err.Error(), "Go ")
	require.False(t, errors.Is(err, status.ErrProtocol))
}
