// Package synthetic makes ONNX models of any size for demonstrations and tests.
package synthetic

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"

	"google.golang.org/protobuf/encoding/protowire"
)

// Model is a network of square layers: y = … relu(relu(x·w0 + b0)·w1 + b1) …, with x [batch, Width] and y [batch, Width].
type Model struct {
	Layers, Width int
	// Seed selects the weights.
	Seed uint64
}

// Bytes returns the size of the weights.
func (m Model) Bytes() int64 { return 4 * int64(m.Layers) * int64(m.Width) * int64(m.Width+1) }

// WriteFile writes the model.
func (m Model) WriteFile(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriterSize(f, 1<<20)
	_, _ = w.Write(m.Encode()) // Flush returns the error
	return w.Flush()
}

// Encode returns the model as a ModelProto.
func (m Model) Encode() []byte {
	random := rand.New(rand.NewPCG(m.Seed, 1))
	graph := make([]byte, 0, m.Bytes()+int64(m.Layers)*256+1024)
	in := "x"
	for i := range m.Layers {
		w, b, product, sum, out := fmt.Sprint("w", i), fmt.Sprint("b", i), fmt.Sprint("p", i), fmt.Sprint("s", i), fmt.Sprint("h", i)
		if i == m.Layers-1 {
			sum = "y"
		}
		graph = message(graph, 1, node("MatMul", product, in, w))
		graph = message(graph, 1, node("Add", sum, product, b))
		if i < m.Layers-1 {
			graph = message(graph, 1, node("Relu", out, sum))
		}
		graph = message(graph, 5, weights(random, w, m.Width, m.Width))
		graph = message(graph, 5, weights(random, b, m.Width))
		in = out
	}
	graph = message(graph, 2, []byte("synthetic"))
	graph = message(graph, 11, m.value("x"))
	graph = message(graph, 12, m.value("y"))
	var opset []byte
	opset = number(opset, 2, 13)
	model := make([]byte, 0, len(graph)+64)
	model = number(model, 1, 8) // IR version
	model = message(model, 8, opset)
	return message(model, 7, graph)
}

// node returns a NodeProto.
func node(op, output string, inputs ...string) []byte {
	var b []byte
	for _, in := range inputs {
		b = message(b, 1, []byte(in))
	}
	b = message(b, 2, []byte(output))
	return message(b, 4, []byte(op))
}

// weights returns a TensorProto of float32 whose products keep the scale of their inputs.
func weights(random *rand.Rand, name string, shape ...int) []byte {
	n := 1
	var b []byte
	for _, d := range shape {
		b = number(b, 1, uint64(d))
		n *= d
	}
	scale := float32(math.Sqrt(6 / float64(shape[0])))
	raw := make([]byte, 0, 4*n)
	for range n {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits((2*random.Float32()-1)*scale))
	}
	b = number(b, 2, 1) // float32
	b = message(b, 8, []byte(name))
	return message(b, 9, raw)
}

// value returns a ValueInfoProto of a float32 tensor [batch, Width].
func (m Model) value(name string) []byte {
	batch := message(nil, 2, []byte("batch"))
	width := number(nil, 1, uint64(m.Width))
	shape := message(message(nil, 1, batch), 1, width)
	tensor := message(number(nil, 1, 1), 2, shape)
	return message(message(nil, 1, []byte(name)), 2, message(nil, 1, tensor))
}

func message(b []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), value)
}

func number(b []byte, field protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), value)
}
