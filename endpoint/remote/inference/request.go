package inference

import (
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"time"
)

// request is a request for inference, of either transport.
type request struct {
	model, version, id string
	// parameters are booleans, int64, uint64, float64 and strings.
	parameters map[string]any
	inputs     []inputTensor
	outputs    []wanted
}

// inputTensor is an input as a client describes it. Nothing of it has been checked.
type inputTensor struct {
	name, datatype string
	shape          []int64
	// data is what came with the request; nil where the input is in shared memory.
	data   source
	region *regionClaim
}

// regionClaim is where in shared memory a client says that an input is, or an output shall be.
type regionClaim struct {
	name          string
	offset, bytes int64
}

// wanted is an output that a client asks for.
type wanted struct {
	name   string
	region *regionClaim
	// classes asks for that many of the largest elements with their indices, as texts, instead of the elements.
	classes int64
	// binary says how REST sends it; nil for what the request says of all.
	binary *bool
}

// Names of parameters of requests and tensors.
const (
	paramRegion       = "shared_memory_region"
	paramRegionBytes  = "shared_memory_byte_size"
	paramRegionOffset = "shared_memory_offset"
	paramClasses      = "classification"
	paramBinaryData   = "binary_data"
	paramBinarySize   = "binary_data_size"
	paramBinaryOutput = "binary_data_output"
	paramTimeout      = "timeout"
	paramEmptyFinal   = "triton_enable_empty_final_response"
	paramFinal        = "triton_final_response"
)

// protocolParameters are those of a request that mean something to servers of the protocol. They are not fields unless
// a function has fields of these names.
var protocolParameters = map[string]bool{
	"sequence_id": true, "sequence_start": true, "sequence_end": true, "priority": true, paramTimeout: true, paramBinaryOutput: true,
}

// isProtocolParameter reports whether a parameter is the protocol's and not the model's.
func isProtocolParameter(name string) bool {
	return protocolParameters[name] || strings.HasPrefix(name, "triton_")
}

// claimOf reads where in shared memory a tensor is from its parameters; nil where it is not.
func claimOf(parameters map[string]any) (*regionClaim, error) {
	name, there := parameters[paramRegion]
	if !there {
		return nil, nil
	}
	claim := &regionClaim{}
	var ok bool
	if claim.name, ok = name.(string); !ok {
		return nil, fmt.Errorf("%w: %s is a text", ErrInvalid, paramRegion)
	}
	bytes, there := parameters[paramRegionBytes]
	if !there {
		return nil, fmt.Errorf("%w: %s is missing", ErrInvalid, paramRegionBytes)
	}
	if claim.bytes, ok = integerOf(bytes); !ok || claim.bytes < 0 {
		return nil, fmt.Errorf("%w: %s is a number of bytes", ErrInvalid, paramRegionBytes)
	}
	if offset, there := parameters[paramRegionOffset]; there {
		if claim.offset, ok = integerOf(offset); !ok || claim.offset < 0 {
			return nil, fmt.Errorf("%w: %s is a number of bytes", ErrInvalid, paramRegionOffset)
		}
	}
	return claim, nil
}

// integerOf is a parameter that is a whole number.
func integerOf(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case uint64:
		return int64(v), v <= math.MaxInt64
	}
	return 0, false
}

// timeout is how long the request may take; 0 for no bound of its own.
func (r *request) timeout() (time.Duration, error) {
	v, there := r.parameters[paramTimeout]
	if !there {
		return 0, nil
	}
	micros, ok := integerOf(v)
	if !ok || micros < 0 || micros > math.MaxInt64/int64(time.Microsecond) {
		return 0, fmt.Errorf("%w: timeout is a number of microseconds", ErrInvalid)
	}
	return time.Duration(micros) * time.Microsecond, nil
}

// setVersion tells the function which version was asked for, where it has a field for it and the client has not filled
// it.
func (r *request) setVersion(m *model) {
	p, ok := m.input(versionField)
	if !ok || p.kind != scalarPort {
		return
	}
	for _, in := range r.inputs {
		if in.name == versionField {
			return
		}
	}
	if _, given := r.parameters[versionField]; given {
		return
	}
	if n, err := strconv.ParseUint(r.version, 10, 64); err == nil {
		r.parameters = maps.Clone(r.parameters)
		if r.parameters == nil {
			r.parameters = make(map[string]any, 1)
		}
		r.parameters[versionField] = n
	}
}
