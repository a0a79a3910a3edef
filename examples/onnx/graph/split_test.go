package graph

import (
	"bytes"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"example.com/onnx/internal/synthetic"

	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// message appends a length-delimited field and number a varint.
func message(b []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), value)
}

func number(b []byte, field protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), value)
}

// floats returns a TensorProto of float32 with the given dimensions and n elements.
func floats(name string, n int, dims ...uint64) []byte {
	var b []byte
	for _, d := range dims {
		b = number(b, tensorDims, d)
	}
	b = number(b, tensorType, 1)
	b = message(b, tensorName, []byte(name))
	return message(b, tensorRaw, bytes.Repeat([]byte{1, 2, 3, 4}, n))
}

// constant returns a NodeProto with a tensor.
func constant(output string, t []byte) []byte {
	attribute := message(message(nil, attributeName, []byte("value")), attributeTensor, t)
	b := message(nil, nodeOutput, []byte(output))
	b = message(b, nodeOpType, []byte("Constant"))
	return message(b, nodeAttribute, attribute)
}

// encode returns a ModelProto around the fields of a graph.
func encode(version uint64, graph []byte) []byte {
	return message(number(nil, modelVersion, version), modelGraph, graph)
}

// weightsFile returns the file of the weights.
func weightsFile(t *testing.T, p *Parts) []byte {
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(&b, p.Header, p.Source))
	return b.Bytes()
}

// Each weight is at the place of the file that the graph records.
func TestSplitMovesWeights(t *testing.T) {
	t.Parallel()
	m := synthetic.Model{Layers: 2, Width: 32, Seed: 1}
	before := m.Encode()
	p, err := Split(before, Options{Location: "w.safetensors", MinBytes: 4})
	require.NoError(t, err)
	file := weightsFile(t, p)
	header, err := safetensors.ReadHeader(bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	require.Equal(t, p.Header.Tensors, header.Tensors)
	require.Len(t, header.Tensors, 4)
	require.Equal(t, m.Bytes(), header.DataBytes())
	require.Less(t, len(p.Graph), 1500)

	external, err := External(p.Graph)
	require.NoError(t, err)
	require.Len(t, external, 4)
	for _, e := range external {
		require.Equal(t, "w.safetensors", e.Location)
		require.Nil(t, e.Data)
		at := bytes.Index(before, p.data[e.Name])
		require.Positive(t, at, "the weight %q is not a view of the model", e.Name)
	}
	_, err = Split(p.Graph, Options{Location: "w.safetensors"})
	require.ErrorIs(t, err, ErrSplit)
}

func TestSplitKeepsTheRest(t *testing.T) {
	t.Parallel()
	var graph []byte
	graph = message(graph, graphNode, constant("moved", floats("", 300, 300)))
	graph = message(graph, graphNode, constant("small", floats("", 2, 2)))
	graph = message(graph, graphNode, constant("result", floats("", 300, 300)))
	graph = message(graph, graphInitializer, floats("also moved", 300, 3, 100))
	graph = message(graph, graphOutput, message(nil, valueName, []byte("result")))
	graph = message(graph, 999, []byte("unknown"))
	model := message(encode(8, graph), 20, message(nil, 3, []byte("training")))

	p, err := Split(model, Options{Location: "w"})
	require.NoError(t, err)
	external, err := External(p.Graph)
	require.NoError(t, err)
	require.Len(t, external, 2)
	require.Equal(t, "moved", external[0].Name)
	require.Equal(t, []int64{3, 100}, external[1].Shape)
	for _, text := range []string{"small", "result", "unknown", "training"} {
		require.True(t, bytes.Contains(p.Graph, []byte(text)), text)
	}

	// Before version 4, an initializer is also an input of the graph, so constants stay.
	p, err = Split(encode(3, graph), Options{Location: "w"})
	require.NoError(t, err)
	require.Len(t, p.Header.Tensors, 1)
}

// hostile are invalid models.
func hostile() map[string]struct {
	model []byte
	err   error
} {
	initializer := func(t []byte) []byte { return encode(8, message(nil, graphInitializer, t)) }
	good := initializer(floats("w", 300, 300))
	huge := protowire.AppendVarint(protowire.AppendTag(nil, modelGraph, protowire.BytesType), math.MaxUint64)
	manyDims := make([]uint64, 65)
	return map[string]struct {
		model []byte
		err   error
	}{
		"empty":                   {nil, ErrFormat},
		"no graph":                {number(nil, modelVersion, 8), ErrFormat},
		"two graphs":              {append(good, good...), ErrFormat},
		"graph is a number":       {number(nil, modelGraph, 8), ErrFormat},
		"truncated":               {good[:len(good)-1], ErrFormat},
		"length over the end":     {huge, ErrFormat},
		"group":                   {protowire.AppendTag(nil, 3, protowire.StartGroupType), ErrFormat},
		"field 0":                 {[]byte{0, 0}, ErrFormat},
		"more elements than data": {initializer(floats("w", 300, 1<<40)), ErrTensor},
		"less elements than data": {initializer(floats("w", 300, 299)), ErrTensor},
		"overflow":                {initializer(floats("w", 300, 1<<32, 1<<32)), ErrTensor},
		"negative dimension":      {initializer(floats("w", 300, math.MaxUint64)), ErrTensor},
		"too many dimensions":     {initializer(floats("w", 0, manyDims...)), ErrTensor},
		"no name":                 {initializer(floats("", 300, 300)), ErrTensor},
		"two of one name":         {encode(8, append(message(nil, graphInitializer, floats("w", 300, 300)), message(nil, graphNode, constant("w", floats("", 300, 300)))...)), ErrTensor},
		"elements twice":          {initializer(message(floats("w", 300, 600), tensorRaw, make([]byte, 1200))), ErrTensor},
		"external":                {initializer(number(floats("w", 0, 300), tensorLocation, 1)), ErrSplit},
		"name is not UTF-8":       {initializer(floats("\xff", 300, 300)), safetensors.ErrUTF8},
		"reserved name":           {initializer(floats("__metadata__", 300, 300)), safetensors.ErrReservedName},
		"constant is truncated":   {encode(8, message(nil, graphNode, constant("w", []byte{0x0a, 0xff}))), ErrFormat},
	}
}

func TestSplitRefusesHostileModels(t *testing.T) {
	t.Parallel()
	for name, c := range hostile() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Split(c.model, Options{Location: "w"})
			require.ErrorIs(t, err, c.err)
		})
	}
}

// What a model claims does not decide how much memory is allocated.
func TestSplitAllocatesLittleForHostileModels(t *testing.T) {
	for name, c := range hostile() {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Split(c.model, Options{Location: "w"})
		runtime.ReadMemStats(&after)
		require.Error(t, err)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<10), name)
	}
}

// Split fails, or its parts contain the same tensors and the graph can be read again.
func FuzzSplit(f *testing.F) {
	f.Add(synthetic.Model{Layers: 2, Width: 8, Seed: 1}.Encode(), int64(1))
	f.Add(encode(8, message(nil, graphNode, constant("c", floats("", 300, 300)))), int64(0))
	for _, c := range hostile() {
		f.Add(c.model, int64(1))
	}
	f.Fuzz(func(t *testing.T, model []byte, minBytes int64) {
		p, err := Split(model, Options{Location: "w", MinBytes: minBytes})
		if err != nil {
			require.Nil(t, p)
			return
		}
		external, err := External(p.Graph)
		require.NoError(t, err)
		require.Len(t, external, len(p.Header.Tensors))
		for _, e := range external {
			require.Contains(t, p.data, e.Name)
			require.Equal(t, "w", e.Location)
		}
		file := weightsFile(t, p)
		_, err = safetensors.ReadHeader(bytes.NewReader(file), int64(len(file)))
		require.NoError(t, err)
	})
}

// A model refers to files only by the initializers of its graph, so a runtime opens no other file.
func TestExternalRefusesNestedFiles(t *testing.T) {
	t.Parallel()
	entry := message(message(nil, entryKey, []byte("location")), entryValue, []byte("../../etc/passwd"))
	w := message(number(floats("w", 0, 300), tensorLocation, 1), tensorExternalData, entry)
	graph := message(nil, graphInitializer, w)
	found, err := External(encode(8, graph))
	require.NoError(t, err)
	require.Equal(t, "../../etc/passwd", found[0].Location) // callers check it

	attribute := func(number protowire.Number, value []byte) []byte {
		return message(nil, graphNode, message(nil, nodeAttribute, message(nil, number, value)))
	}
	deep := graph
	for range 200 {
		deep = attribute(6, deep)
	}
	for name, c := range map[string]struct {
		model []byte
		err   error
	}{
		"tensor of a node":          {encode(8, attribute(attributeTensor, w)), ErrNested},
		"tensors of a node":         {encode(8, attribute(10, w)), ErrNested},
		"graph of a node":           {encode(8, attribute(6, graph)), ErrNested},
		"graphs of a node":          {encode(8, attribute(11, attribute(6, graph))), ErrNested},
		"sparse tensor of a node":   {encode(8, attribute(22, message(nil, 1, w))), ErrNested},
		"sparse tensors of a node":  {encode(8, attribute(23, message(nil, 2, w))), ErrNested},
		"sparse initializer":        {encode(8, message(nil, 15, message(nil, 1, w))), ErrNested},
		"function":                  {message(encode(8, nil), 25, message(nil, 7, message(nil, nodeAttribute, message(nil, attributeTensor, w)))), ErrNested},
		"default of a function":     {message(encode(8, nil), 25, message(nil, 11, message(nil, attributeTensor, w))), ErrNested},
		"training":                  {message(encode(8, nil), 20, message(nil, 2, graph)), ErrNested},
		"external without location": {encode(8, attribute(attributeTensor, number(floats("w", 0, 300), tensorLocation, 1))), ErrNested},
		"location without external": {encode(8, attribute(attributeTensor, message(floats("w", 0, 300), tensorExternalData, entry))), ErrNested},
		"too deep":                  {encode(8, deep), ErrFormat},
		"attribute is a number":     {encode(8, message(nil, graphNode, number(nil, nodeAttribute, 1))), ErrFormat},
	} {
		_, err := External(c.model)
		require.ErrorIs(t, err, c.err, name)
	}
}
