package graph

import (
	"fmt"
	"io"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// Options configures Split.
type Options struct {
	// Location is the file name of the weights, which the graph records.
	Location string
	// MinBytes is the size from which tensors are moved; 0 means DefaultMinBytes. Smaller ones stay in the graph, because
	// runtimes need the values of shapes and axes before they load weights.
	MinBytes int64
}

// DefaultMinBytes is the default of Options.MinBytes.
const DefaultMinBytes = 1024

// Parts are a graph and its weights. The weights are views of the model's bytes.
type Parts struct {
	// Graph is an ONNX model with external initializers.
	Graph []byte
	// Header describes the file of the weights.
	Header *safetensors.Header

	data map[string][]byte
}

// Split separates the weights of a model, which it borrows until the parts are not used anymore: initializers of the main
// graph, and its Constant nodes, which become initializers. Tensors in subgraphs, sparse tensors, strings, and types that
// safetensors lacks stay in the graph.
//
// Errors: ErrFormat, ErrSplit, ErrNested, ErrTensor, and for names the errors of safetensors.NewHeader.
func Split(model []byte, opts Options) (*Parts, error) {
	if opts.MinBytes <= 0 {
		opts.MinBytes = DefaultMinBytes
	}
	m, err := parseModel(model)
	if err != nil {
		return nil, err
	}
	if err := checkNested(modelKind, model, 0); err != nil {
		return nil, err
	}
	moved, err := m.movable(opts.MinBytes)
	if err != nil {
		return nil, err
	}
	p := &Parts{data: make(map[string][]byte, len(moved))}
	infos := make([]safetensors.TensorInfo, 0, len(moved))
	var bytes int
	for _, t := range moved {
		p.data[t.Name] = t.Data
		infos = append(infos, t.info())
		bytes += len(t.Data)
	}
	if p.Header, err = safetensors.NewHeader(infos, map[string]string{"format": "onnx"}); err != nil {
		return nil, err
	}
	places := make(map[string]safetensors.TensorInfo, len(moved))
	for _, info := range p.Header.Tensors {
		places[info.Name] = info
	}
	graph := make([]byte, 0, len(m.graph)-bytes+len(moved)*128)
	graph = m.appendGraph(graph, moved, func(t *Tensor) []byte {
		info := places[t.Name]
		return appendExternal(nil, t, opts.Location, p.Header.DataOffset+info.Begin, info.Bytes())
	})
	p.Graph = append(p.Graph, m.before...)
	p.Graph = protowire.AppendTag(p.Graph, modelGraph, protowire.BytesType)
	p.Graph = protowire.AppendBytes(p.Graph, graph)
	p.Graph = append(p.Graph, m.after...)
	return p, nil
}

// Source writes the weights. Use it with safetensors.WriteFile and Header.
func (p *Parts) Source(w io.Writer, t safetensors.TensorInfo) error {
	_, err := w.Write(p.data[t.Name])
	return err
}

// External returns the external initializers of a graph. Their data is nil. It fails with [ErrNested] if the model refers to
// files in any other way.
func External(model []byte) ([]Tensor, error) {
	m, err := parseModel(model)
	if err != nil {
		return nil, err
	}
	if err := checkNested(modelKind, model, 0); err != nil {
		return nil, err
	}
	var found []Tensor
	for _, f := range m.fields {
		if !f.is(graphInitializer) {
			continue
		}
		t, err := parseTensor(f.value)
		if err != nil {
			return nil, err
		}
		if t.External {
			found = append(found, t)
		}
	}
	return found, nil
}

// model is a ModelProto in pieces.
type model struct {
	version       uint64
	before, after []byte // encoded fields around the graph
	graph         []byte
	fields        []field // of the graph
	outputs       map[string]bool
}

// parseModel reads the outermost messages.
func parseModel(message []byte) (*model, error) {
	m := &model{outputs: make(map[string]bool)}
	seen := false
	err := walk(message, func(f field) error {
		switch {
		case f.number == modelVersion:
			m.version = f.varint
		case f.number == modelGraph && (seen || f.kind != protowire.BytesType):
			return fmt.Errorf("%w: more than one graph", ErrFormat)
		case f.number == modelGraph:
			m.graph, seen = f.value, true
			return nil
		}
		if seen {
			m.after = append(m.after, f.raw...)
		} else {
			m.before = append(m.before, f.raw...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if !seen {
		return nil, fmt.Errorf("%w: no graph", ErrFormat)
	}
	return m, walk(m.graph, func(f field) error {
		m.fields = append(m.fields, f)
		if !f.is(graphOutput) {
			return nil
		}
		return walk(f.value, func(g field) error {
			if g.is(valueName) {
				m.outputs[string(g.value)] = true
			}
			return nil
		})
	})
}

// firstConstants is the IR version from which an initializer need not be an input of the graph.
const firstConstants = 4

// movable returns the tensors to move by the index of their field.
func (m *model) movable(minBytes int64) (map[int]*Tensor, error) {
	moved := make(map[int]*Tensor)
	names := make(map[string]bool)
	for i, f := range m.fields {
		var t Tensor
		var err error
		switch {
		case f.is(graphInitializer):
			t, err = parseTensor(f.value)
		case f.is(graphNode) && m.version >= firstConstants:
			t, err = parseConstant(f.value)
		default:
			continue
		}
		if err != nil {
			return nil, err
		}
		if t.External {
			return nil, fmt.Errorf("%w (%q)", ErrSplit, t.Name)
		}
		if t.Name == "" {
			if f.is(graphInitializer) {
				return nil, fmt.Errorf("%w: an initializer has no name", ErrTensor)
			}
			continue // not a Constant node
		}
		if names[t.Name] {
			return nil, fmt.Errorf("%w: two tensors have the name %q", ErrTensor, t.Name)
		}
		names[t.Name] = true
		if int64(len(t.Data)) >= minBytes && !m.outputs[t.Name] {
			moved[i] = &t
		}
	}
	return moved, nil
}

// parseConstant returns the value of a Constant node, named as its output. The tensor of another node has no name.
func parseConstant(message []byte) (Tensor, error) {
	var output, value []byte
	var outputs, attributes int
	constant := false
	err := walk(message, func(f field) error {
		switch {
		case f.is(nodeOutput):
			output, outputs = f.value, outputs+1
		case f.is(nodeOpType):
			constant = string(f.value) == "Constant"
		case f.is(nodeDomain) && len(f.value) > 0 && string(f.value) != "ai.onnx":
			outputs = 2 // a function of another domain
		case f.is(nodeAttribute):
			attributes++
			value = f.value
		}
		return nil
	})
	if err != nil || !constant || outputs != 1 || attributes != 1 {
		return Tensor{}, err
	}
	var t Tensor
	var named bool
	var tensors int
	err = walk(value, func(f field) (err error) {
		switch {
		case f.is(attributeName):
			named = string(f.value) == "value"
		case f.is(attributeTensor):
			tensors++
			t, err = parseTensor(f.value)
		}
		return err
	})
	if err != nil || !named || tensors != 1 {
		return Tensor{}, err
	}
	t.Name = string(output)
	return t, nil
}

// appendGraph appends the graph with each moved tensor replaced by an initializer.
func (m *model) appendGraph(b []byte, moved map[int]*Tensor, encode func(t *Tensor) []byte) []byte {
	for i, f := range m.fields {
		t := moved[i]
		if t == nil {
			b = append(b, f.raw...)
			continue
		}
		b = protowire.AppendTag(b, graphInitializer, protowire.BytesType)
		b = protowire.AppendBytes(b, encode(t))
	}
	return b
}

// appendExternal appends a TensorProto whose bytes are in a file.
func appendExternal(b []byte, t *Tensor, location string, offset, length int64) []byte {
	for _, d := range t.Shape {
		b = protowire.AppendTag(b, tensorDims, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(d))
	}
	b = protowire.AppendTag(b, tensorType, protowire.VarintType)
	b = protowire.AppendVarint(b, uint64(t.Type))
	b = protowire.AppendTag(b, tensorName, protowire.BytesType)
	b = protowire.AppendString(b, t.Name)
	for _, entry := range [][2]string{
		{"location", location}, {"offset", strconv.FormatInt(offset, 10)}, {"length", strconv.FormatInt(length, 10)},
	} {
		var e []byte
		e = protowire.AppendTag(e, entryKey, protowire.BytesType)
		e = protowire.AppendString(e, entry[0])
		e = protowire.AppendTag(e, entryValue, protowire.BytesType)
		e = protowire.AppendString(e, entry[1])
		b = protowire.AppendTag(b, tensorExternalData, protowire.BytesType)
		b = protowire.AppendBytes(b, e)
	}
	b = protowire.AppendTag(b, tensorLocation, protowire.VarintType)
	return protowire.AppendVarint(b, external)
}
