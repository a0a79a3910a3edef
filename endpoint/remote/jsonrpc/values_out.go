package jsonrpc

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// outgoing converts results to JSON values.
type outgoing struct {
	c *Component
	// byURL keeps tensors for GET /v1/results instead of encoding them.
	byURL bool
	// reply receives the encoded tensors.
	reply *reply
	// sender is charged for kept tensors.
	sender rights.Identity
}

// jsonTensor is a tensor in JSON.
type jsonTensor struct {
	DType  string       `json:"dtype"`
	Shape  tensor.Shape `json:"shape"`
	Data   *string      `json:"data,omitempty"`
	URL    string       `json:"url,omitempty"`
	Bytes  int64        `json:"bytes,omitempty"`
	SHA256 string       `json:"sha256,omitempty"`
}

// value converts v to a value that encoding/json can write. Tensors of v still belong to the caller.
func (o *outgoing) value(v any, depth int) (_ any, err error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%w: nested deeper than %d", models.ErrSerialization, maxDepth)
	}
	switch v := v.(type) {
	case *tensor.Tensor:
		return o.tensor(v)
	case *module.StateDict:
		return o.stateDict(v)
	case []any:
		list := make([]any, len(v))
		for i := range v {
			if list[i], err = o.value(v[i], depth+1); err != nil {
				return nil, err
			}
		}
		return list, nil
	case map[string]any:
		object := make(map[string]any, len(v))
		for key := range v {
			if object[key], err = o.value(v[key], depth+1); err != nil {
				return nil, err
			}
		}
		return object, nil
	case map[any]any:
		object := make(map[string]any, len(v))
		for key, inner := range v {
			name := fmt.Sprint(key)
			if _, twice := object[name]; twice {
				return nil, fmt.Errorf("%w: two keys of a map have the text %q", models.ErrSerialization, name)
			}
			if object[name], err = o.value(inner, depth+1); err != nil {
				return nil, err
			}
		}
		return object, nil
	case []byte:
		return map[string]string{bytesKey: base64.StdEncoding.EncodeToString(v)}, nil
	case float64:
		return jsonFloat(v), nil
	case float32:
		return jsonFloat(float64(v)), nil
	case string:
		return strings.ToValidUTF8(v, "\uFFFD"), nil
	case nil, bool, int64, uint64, int, time.Time:
		return v, nil
	}
	return nil, fmt.Errorf("%w: a value of type %T", models.ErrSerialization, v)
}

// jsonFloat returns f, or the object that represents it if JSON cannot.
func jsonFloat(f float64) any {
	switch {
	case math.IsNaN(f):
		return map[string]string{floatKey: "NaN"}
	case math.IsInf(f, 1):
		return map[string]string{floatKey: "Infinity"}
	case math.IsInf(f, -1):
		return map[string]string{floatKey: "-Infinity"}
	case f == 0 && math.Signbit(f):
		return json.RawMessage("-0.0") // parsers read -0 as an integer, which has no sign
	}
	return f
}

func (o *outgoing) tensor(t *tensor.Tensor) (any, error) {
	if t == nil {
		return nil, nil
	}
	out := jsonTensor{DType: t.DType().String(), Shape: t.Shape()}
	if out.Shape == nil {
		out.Shape = tensor.Shape{}
	}
	if o.byURL {
		kept, err := o.c.results.keep(o.sender, t)
		if err != nil {
			return nil, err
		}
		out.URL, out.Bytes, out.SHA256 = "/v1/results/"+kept.ID, t.Bytes(), kept.Value.digest.String()
		return map[string]jsonTensor{tensorKey: out}, nil
	}
	data, err := o.reply.data(t)
	if err != nil {
		return nil, err
	}
	out.Data = &data
	return map[string]jsonTensor{tensorKey: out}, nil
}

func (o *outgoing) stateDict(sd *module.StateDict) (any, error) {
	if sd == nil {
		return nil, nil
	}
	tensors := make(map[string]any, sd.Len())
	for name, t := range sd.All() {
		one, err := o.tensor(t)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		tensors[name] = one
	}
	return map[string]any{stateDictKey: map[string]any{"names": sd.Names(), "tensors": tensors, "metadata": maps.Clone(sd.Metadata)}}, nil
}

// closeTensors closes the tensors of a result that was decoded without a type.
func closeTensors(v any) error {
	var errs []error
	switch v := v.(type) {
	case *tensor.Tensor:
		if v != nil {
			errs = append(errs, v.Close())
		}
	case *module.StateDict:
		errs = append(errs, v.Close())
	case []any:
		for _, below := range v {
			errs = append(errs, closeTensors(below))
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			errs = append(errs, closeTensors(v[key]))
		}
	case map[any]any:
		for _, below := range v {
			errs = append(errs, closeTensors(below))
		}
	}
	return errors.Join(errs...)
}
