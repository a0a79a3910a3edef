package inference

import (
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"time"
)

// request is an inference request of either transport.
type request struct {
	model, version, id string
	// parameters contains values of the types bool, int64, uint64, float64 and string.
	parameters map[string]any
	inputs     []inputTensor
	outputs    []wanted
	// atEnd, if not nil, verifies the end of the body after the last input was read. Before that, nothing has verified
	// that the inputs are what the client sent.
	atEnd func() error
}

// inputTensor is an input as described by a client. It has not been validated.
type inputTensor struct {
	name, datatype string
	shape          []int64
	// data is the content sent with the request; nil if the input is in shared memory.
	data   source
	region *regionClaim
}

// regionClaim is the location in shared memory that a client specifies for an input or output.
type regionClaim struct {
	name          string
	offset, bytes int64
	held          *region // of an output, while the request runs
}

// wanted is an output that a client requests.
type wanted struct {
	name   string
	region *regionClaim
	// classes, if not 0, requests the indices of that many largest elements, as texts, instead of the elements.
	classes int64
	// binary selects the REST encoding; nil for the request's default.
	binary *bool
}

// Parameter names of requests and tensors.
const (
	paramRegion       = "shared_memory_region"
	paramRegionBytes  = "shared_memory_byte_size"
	paramRegionOffset = "shared_memory_offset"
	paramClasses      = "classification"
	paramBinaryData   = "binary_data"
	paramBinarySize   = "binary_data_size"
	paramBinaryOutput = "binary_data_output"
	paramTimeout      = "timeout"
	paramPriority     = "priority"
	paramEmptyFinal   = "triton_enable_empty_final_response"
	paramFinal        = "triton_final_response"
)

// paramSequence is the parameter that names a request's sequence.
const paramSequence = "sequence_id"

// protocolParameters are the request parameters that the protocol defines. They set fields only if the function
// has fields with these names.
var protocolParameters = map[string]bool{
	paramSequence: true, "sequence_start": true, "sequence_end": true, paramPriority: true, paramTimeout: true, paramBinaryOutput: true,
}

// isProtocolParameter reports whether the protocol defines a parameter.
func isProtocolParameter(name string) bool {
	return protocolParameters[name] || strings.HasPrefix(name, "triton_")
}

// claimOf returns the location in shared memory specified by a tensor's parameters; nil if there is none.
func claimOf(parameters map[string]any) (*regionClaim, error) {
	name, there := parameters[paramRegion]
	if !there {
		return nil, nil
	}
	claim := &regionClaim{}
	var ok bool
	if claim.name, ok = name.(string); !ok {
		return nil, fmt.Errorf("%w: %s must be a text", ErrInvalid, paramRegion)
	}
	bytes, there := parameters[paramRegionBytes]
	if !there {
		return nil, fmt.Errorf("%w: %s is missing", ErrInvalid, paramRegionBytes)
	}
	if claim.bytes, ok = integerOf(bytes); !ok || claim.bytes < 0 {
		return nil, fmt.Errorf("%w: %s must be a number of bytes", ErrInvalid, paramRegionBytes)
	}
	if offset, there := parameters[paramRegionOffset]; there {
		if claim.offset, ok = integerOf(offset); !ok || claim.offset < 0 {
			return nil, fmt.Errorf("%w: %s must be a number of bytes", ErrInvalid, paramRegionOffset)
		}
	}
	return claim, nil
}

// integerOf converts a parameter to an integer.
func integerOf(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case uint64:
		return int64(v), v <= math.MaxInt64
	}
	return 0, false
}

// checkSequence refuses a request that is part of a sequence, because calls do not share state. 0 and an empty text
// mean no sequence. A function may have an input with that name.
func (r *request) checkSequence(m *model) error {
	switch id := r.parameters[paramSequence]; id {
	case nil, int64(0), uint64(0), float64(0), "", false:
		return nil
	}
	if _, own := m.input(paramSequence); own {
		return nil
	}
	return fmt.Errorf("%w: sequences: model '%s' keeps no state between requests: leave sequence_id out", ErrNotServed, m.name)
}

// timeout returns the time limit of the request; 0 if it has none.
func (r *request) timeout() (time.Duration, error) {
	v, there := r.parameters[paramTimeout]
	if !there {
		return 0, nil
	}
	micros, ok := integerOf(v)
	if !ok || micros < 0 || micros > math.MaxInt64/int64(time.Microsecond) {
		return 0, fmt.Errorf("%w: timeout must be a number of microseconds", ErrInvalid)
	}
	return time.Duration(micros) * time.Microsecond, nil
}

// setVersion passes the requested version to the function if it has a version field that the client has not set.
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
