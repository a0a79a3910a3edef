package inference

import (
	"fmt"
	"math"

	"google.golang.org/grpc/mem"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
)

// requestOf converts a message to a request. It borrows the parts; the request's sources are views of them.
func requestOf(in *pb.ModelInferRequest, parts []mem.BufferSlice) (*request, error) {
	r := &request{model: in.GetModelName(), version: in.GetModelVersion(), id: in.GetId(), parameters: parametersFrom(in.GetParameters())}
	r.inputs = make([]inputTensor, len(in.GetInputs()))
	next := 0
	for i, t := range in.GetInputs() {
		one := &r.inputs[i]
		*one = inputTensor{name: t.GetName(), datatype: t.GetDatatype(), shape: t.GetShape()}
		var err error
		if one.region, err = claimOf(parametersFrom(t.GetParameters())); err != nil {
			return nil, inputError(one.name, err)
		}
		switch {
		case one.region != nil:
		case t.GetContents() != nil && len(parts) > 0:
			return nil, inputError(one.name, fmt.Errorf("%w: contents field must not be specified when using raw_input_contents", ErrInvalid))
		case t.GetContents() != nil:
			raw, err := contentsOf(t)
			if err != nil {
				return nil, inputError(one.name, err)
			}
			one.data = &memorySource{raw}
		case next < len(parts):
			one.data = newBufferSource(parts[next])
			next++
		}
	}
	if next != len(parts) {
		return nil, fmt.Errorf("%w: there are %d raw_input_contents for %d inputs that are not in shared memory", ErrInvalid, len(parts), next)
	}
	for _, w := range in.GetOutputs() {
		one, err := wantedOf(w.GetName(), parametersFrom(w.GetParameters()))
		if err != nil {
			return nil, err
		}
		r.outputs = append(r.outputs, one)
	}
	return r, nil
}

// wantedOf reads the name and the options of a requested output.
func wantedOf(name string, parameters map[string]any) (w wanted, err error) {
	w.name = name
	if w.region, err = claimOf(parameters); err != nil {
		return w, fmt.Errorf("output '%s': %w", clip(name), err)
	}
	if v, there := parameters[paramClasses]; there {
		var ok bool
		if w.classes, ok = integerOf(v); !ok || w.classes < 0 {
			return w, fmt.Errorf("%w: output '%s': classification must be a number of classes", ErrInvalid, clip(name))
		}
	}
	if v, there := parameters[paramBinaryData]; there {
		binary, ok := v.(bool)
		if !ok {
			return w, fmt.Errorf("%w: output '%s': %s must be true or false", ErrInvalid, clip(name), paramBinaryData)
		}
		w.binary = &binary
	}
	return w, nil
}

func parametersFrom(in map[string]*pb.InferParameter) map[string]any {
	if len(in) == 0 {
		return nil
	}
	out := make(map[string]any, len(in))
	for name, p := range in {
		switch v := p.GetParameterChoice().(type) {
		case *pb.InferParameter_BoolParam:
			out[name] = v.BoolParam
		case *pb.InferParameter_Int64Param:
			out[name] = v.Int64Param
		case *pb.InferParameter_Uint64Param:
			out[name] = v.Uint64Param
		case *pb.InferParameter_StringParam:
			out[name] = v.StringParam
		case *pb.InferParameter_DoubleParam:
			out[name] = v.DoubleParam
		default:
			out[name] = nil
		}
	}
	return out
}

// contentsOf encodes elements that were sent as numbers. Their count must match the shape.
func contentsOf(in *pb.ModelInferRequest_InferInputTensor) ([]byte, error) {
	n, err := elementCount(in.GetShape())
	if err != nil {
		return nil, err
	}
	c, d := in.GetContents(), in.GetDatatype()
	switch d {
	case "BOOL":
		return encodeAll(c.GetBoolContents(), n, func(b []byte, v bool) ([]byte, error) { return append(b, btoi(v)), nil })
	case "INT8", "INT16", "INT32":
		return encodeAll(c.GetIntContents(), n, func(b []byte, v int32) ([]byte, error) { return appendInteger(b, d, int64(v), uint64(v), v < 0) })
	case "INT64":
		return encodeAll(c.GetInt64Contents(), n, func(b []byte, v int64) ([]byte, error) { return little.AppendUint64(b, uint64(v)), nil })
	case "UINT8", "UINT16", "UINT32":
		return encodeAll(c.GetUintContents(), n, func(b []byte, v uint32) ([]byte, error) { return appendInteger(b, d, 0, uint64(v), false) })
	case "UINT64":
		return encodeAll(c.GetUint64Contents(), n, func(b []byte, v uint64) ([]byte, error) { return little.AppendUint64(b, v), nil })
	case "FP32":
		return encodeAll(c.GetFp32Contents(), n, func(b []byte, v float32) ([]byte, error) { return little.AppendUint32(b, math.Float32bits(v)), nil })
	case "FP64":
		return encodeAll(c.GetFp64Contents(), n, func(b []byte, v float64) ([]byte, error) { return little.AppendUint64(b, math.Float64bits(v)), nil })
	case bytesType:
		return encodeAll(c.GetBytesContents(), n, func(b []byte, v []byte) ([]byte, error) { return appendText(b, v), nil })
	}
	return nil, fmt.Errorf("%w: elements of datatype %q must be sent as raw_input_contents", ErrInvalid, clip(d))
}

func encodeAll[T any](values []T, n int64, encode func([]byte, T) ([]byte, error)) (b []byte, err error) {
	if int64(len(values)) != n {
		return nil, fmt.Errorf("%w: unexpected number of values in contents: %d, the shape has %d", ErrInvalid, len(values), n)
	}
	for _, v := range values {
		if b, err = encode(b, v); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// message returns the response as a message. It takes ownership of the elements of the outputs.
func (r *response) message(s *service) (*bulk.Parts, error) {
	head := &pb.ModelInferResponse{ModelName: r.model, ModelVersion: r.version, Id: r.id, Parameters: parametersTo(r.parameters)}
	m := &bulk.Parts{Head: head, Field: rawOutputField}
	head.Outputs = make([]*pb.ModelInferResponse_InferOutputTensor, len(r.outputs))
	for i, o := range r.outputs {
		one := &pb.ModelInferResponse_InferOutputTensor{Name: o.name, Datatype: o.datatype, Shape: o.shape}
		head.Outputs[i] = one
		switch {
		case o.region != nil:
			one.Parameters = parametersTo(o.region.parameters())
			m.Append(nil) // each output has a part
		case o.t != nil:
			buffer, err := bulk.BorrowTensor(o.t, s.device)
			if o.t = nil; err != nil {
				m.Free()
				return nil, err
			}
			m.Append(mem.BufferSlice{buffer})
		default:
			m.Append(mem.BufferSlice{mem.SliceBuffer(o.raw)})
		}
	}
	return m, nil
}

// parameters returns the parameters that describe the shared memory of an output.
func (c *regionClaim) parameters() map[string]any {
	p := map[string]any{paramRegion: c.name, paramRegionBytes: c.bytes}
	if c.offset != 0 {
		p[paramRegionOffset] = c.offset
	}
	return p
}

func parametersTo(in map[string]any) map[string]*pb.InferParameter {
	if len(in) == 0 {
		return nil
	}
	out := make(map[string]*pb.InferParameter, len(in))
	for name, v := range in {
		p := &pb.InferParameter{}
		switch v := v.(type) {
		case bool:
			p.ParameterChoice = &pb.InferParameter_BoolParam{BoolParam: v}
		case int64:
			p.ParameterChoice = &pb.InferParameter_Int64Param{Int64Param: v}
		case string:
			p.ParameterChoice = &pb.InferParameter_StringParam{StringParam: v}
		}
		out[name] = p
	}
	return out
}
