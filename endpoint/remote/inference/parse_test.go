package inference

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/sharedtensor/sharedtensor/endpoint"
	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
)

func TestPorts(t *testing.T) {
	f := func(name, typ string, optional bool, fields ...endpoint.FieldInfo) endpoint.FieldInfo {
		return endpoint.FieldInfo{Name: name, Type: typ, Optional: optional, Fields: fields}
	}
	list, missing := portsOf(wholeInput, "main.Args", nil, []endpoint.FieldInfo{
		f("x", "*tensor.Tensor", false), f("n", "int", true), f("names", "[]string", false), f("image", "[]uint8", false),
		f("mode", "main.Mode", true), f("deep", "*main.Deep", true, f("rate", "float32", false), f("w", "*tensor.Tensor", false)),
		f("lists", "[]main.Deep", true, f("rate", "float32", false)), f("map", "map[string]int", false), f("state", "*module.StateDict", false),
	})
	require.Equal(t, []string{"map map[string]int", "state *module.StateDict"}, missing)
	require.Equal(t, []port{
		{name: "x", path: []string{"x"}, kind: tensorPort, shape: []int64{-1}},
		{name: "n", path: []string{"n"}, kind: scalarPort, datatype: "INT64", shape: []int64{1}, optional: true},
		{name: "names", path: []string{"names"}, kind: listPort, datatype: "BYTES", shape: []int64{-1}},
		{name: "image", path: []string{"image"}, kind: scalarPort, datatype: "BYTES", shape: []int64{1}, raw: true},
		{name: "mode", path: []string{"mode"}, kind: scalarPort, shape: []int64{1}, optional: true},
		{name: "deep.rate", path: []string{"deep", "rate"}, kind: scalarPort, datatype: "FP32", shape: []int64{1}, optional: true},
		{name: "deep.w", path: []string{"deep", "w"}, kind: tensorPort, shape: []int64{-1}, optional: true},
	}, list)
	list, missing = portsOf(wholeOutput, "*tensor.Tensor", nil, nil)
	require.Empty(t, missing)
	require.Equal(t, []port{{name: "output", kind: tensorPort, shape: []int64{-1}}}, list)
}

func TestAcceptedEncodings(t *testing.T) {
	for header, want := range map[string]string{"": "", "gzip": "gzip", "br, deflate;q=0.5, gzip": "deflate", "gzip;q=0": "", "identity": "", "*": ""} {
		require.Equal(t, want, accepted(header), header)
	}
}

// If elements are accepted from JSON, their count matches the shape, and they are formatted as the same values.
func FuzzElements(f *testing.F) {
	for _, text := range []string{"[1,2]", "[[1.5],[ -2e3]]", `["a","\u00e4\""]`, "[true,0]", `[{}]`, `[null]`, "[18446744073709551615]", "3"} {
		for i := range datatypes {
			f.Add(text, i, int64(2))
		}
		f.Add(text, -1, int64(2))
	}
	f.Fuzz(func(t *testing.T, text string, which int, n int64) {
		d := bytesType
		if which >= 0 && which < len(datatypes) {
			d = datatypes[which].name
		}
		if !json.Valid([]byte(text)) {
			return
		}
		raw, err := parseElements(json.RawMessage(text), d, []int64{n})
		if err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		if d == bytesType {
			_, err = texts(raw, n)
		} else {
			dtype, known := dtypeOf(d)
			require.NoError(t, known)
			require.EqualValues(t, n*int64(dtype.BitSize()/8), len(raw))
		}
		require.NoError(t, err)
		out, err := formatElements(raw, d)
		if err != nil {
			require.ErrorIs(t, err, ErrNotServed)
			return
		}
		again, err := parseElements(out, d, []int64{n})
		require.NoError(t, err, "%s", out)
		require.True(t, bytes.Equal(raw, again), "%s became %s", text, out)
	})
}

// Reading a request returns a request or an error, and no input has more elements than were sent.
func FuzzRequest(f *testing.F) {
	seed, err := proto.Marshal(&pb.ModelInferRequest{
		ModelName: "m", Inputs: []*pb.ModelInferRequest_InferInputTensor{
			{Name: "x", Datatype: "FP32", Shape: []int64{2}}, {Name: "y", Datatype: "BYTES", Shape: []int64{1}, Contents: &pb.InferTensorContents{BytesContents: [][]byte{{1}}}},
		}, RawInputContents: [][]byte{make([]byte, 8)},
	})
	require.NoError(f, err)
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		in := new(pb.ModelInferRequest)
		if proto.Unmarshal(data, in) != nil {
			return
		}
		var parts []mem.BufferSlice
		for _, raw := range in.GetRawInputContents() {
			parts = append(parts, mem.BufferSlice{mem.SliceBuffer(raw)})
		}
		r, err := requestOf(in, parts)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		for _, one := range r.inputs {
			if one.data == nil {
				continue
			}
			p, err := placeOf(port{kind: tensorPort}, one)
			if err == nil {
				require.NoError(t, one.data.read(make([]byte, p.bytes)))
				require.Error(t, one.data.read(make([]byte, 1)))
			}
		}
	})
}
