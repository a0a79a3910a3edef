package graph

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// kind is a type of message in onnx.proto.
type kind uint8

const (
	modelKind kind = iota + 1
	trainingKind
	functionKind
	graphKind
	nodeKind
	attributeKind
	sparseKind
	tensorKind
)

// children lists the fields of messages through which a tensor can be reached.
var children = map[kind]map[protowire.Number]kind{
	modelKind:     {modelGraph: graphKind, 20: trainingKind, 25: functionKind},
	trainingKind:  {1: graphKind, 2: graphKind},
	functionKind:  {7: nodeKind, 11: attributeKind},
	graphKind:     {graphNode: nodeKind, graphInitializer: tensorKind, 15: sparseKind},
	nodeKind:      {nodeAttribute: attributeKind},
	attributeKind: {attributeTensor: tensorKind, 6: graphKind, 10: tensorKind, 11: graphKind, 22: sparseKind, 23: sparseKind},
	sparseKind:    {1: tensorKind, 2: tensorKind},
}

// maxDepth limits nested graphs, as protobuf's own parsers limit messages.
const maxDepth = 100

// checkNested fails if a tensor other than an initializer of the model's graph is in a file. A runtime would open the file
// that the model names, wherever it is. depth is that of the message; the model has 0.
func checkNested(of kind, message []byte, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: more than %d nested messages", ErrFormat, maxDepth)
	}
	return walk(message, func(f field) error {
		child := children[of][f.number]
		switch {
		case of == tensorKind && (f.number == tensorExternalData || f.number == tensorLocation && f.varint == external):
			return ErrNested
		case child == 0:
			return nil
		case child == tensorKind && of == graphKind && depth == 1 && f.number == graphInitializer:
			return nil
		case f.kind != protowire.BytesType:
			return fmt.Errorf("%w: field %d is not a message", ErrFormat, f.number)
		}
		return checkNested(child, f.value, depth+1)
	})
}
