package jsonrpc

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Keys of the objects that represent values without a JSON equivalent.
const (
	tensorKey    = "$tensor"
	stateDictKey = "$state_dict"
	bytesKey     = "$bytes"
	floatKey     = "$float"
)

// maxDepth is the maximum nesting of values.
const maxDepth = 64

// incoming builds the argument of a call from JSON values. The caller calls close when the call has ended.
type incoming struct {
	c      *Component
	client *endpoint.Client // for tensors by reference; nil if there is no owner
	held   []io.Closer
}

// close closes the resources of the argument.
func (in *incoming) close() error {
	var errs []error
	for _, one := range in.held {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

// value replaces the objects that represent tensors and other special values. It modifies v in place.
func (in *incoming) value(ctx context.Context, v any, depth int) (_ any, err error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%w: nested deeper than %d", models.ErrParams, maxDepth)
	}
	switch v := v.(type) {
	case []any:
		for i := range v {
			if v[i], err = in.value(ctx, v[i], depth+1); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		if len(v) == 1 {
			for key, inner := range v {
				if special, is, err := in.special(ctx, key, inner); is || err != nil {
					return special, err
				}
			}
		}
		for key := range v {
			if v[key], err = in.value(ctx, v[key], depth+1); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// special returns the value that an object with a single key represents. is is false if the key is not special.
func (in *incoming) special(ctx context.Context, key string, v any) (_ any, is bool, err error) {
	switch key {
	case tensorKey:
		t, err := in.tensor(ctx, v)
		return t, true, err
	case stateDictKey:
		sd, err := in.stateDict(ctx, v)
		return sd, true, err
	case bytesKey:
		text, ok := v.(string)
		b, err := base64.StdEncoding.DecodeString(text)
		if !ok || err != nil {
			return nil, true, fmt.Errorf("%w: %s has to be base64", models.ErrParams, bytesKey)
		}
		return b, true, nil
	case floatKey:
		text, _ := v.(string)
		f, err := parseFloat(text)
		return f, true, err
	}
	return nil, false, nil
}

// parseFloat parses any floating-point number, including NaN and Infinity.
func parseFloat(text string) (float64, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %s is \"NaN\", \"Infinity\" or \"-Infinity\"", models.ErrParams, floatKey)
	}
	return f, nil
}

// tensorSpec is the decoded object of a tensor.
type tensorSpec struct {
	dtype                              tensor.DType
	shape                              tensor.Shape
	hasShape                           bool
	data, model, name, url, sha256, dt string
	version                            uint64
	values                             any
	hasData, hasValues                 bool
}

// readTensorSpec decodes an object and checks its keys and types.
func readTensorSpec(v any) (s tensorSpec, err error) {
	object, ok := v.(map[string]any)
	if !ok {
		return s, fmt.Errorf("%w: %s has to be an object", models.ErrParams, tensorKey)
	}
	for key, inner := range object {
		ok := true
		switch key {
		case "dtype":
			s.dt, ok = inner.(string)
		case "shape":
			s.hasShape = true
			s.shape, ok = shapeOf(inner)
		case "data":
			s.hasData = true
			s.data, ok = inner.(string)
		case "values":
			s.hasValues, s.values = true, inner
		case "model":
			s.model, ok = inner.(string)
		case "name":
			s.name, ok = inner.(string)
		case "version":
			s.version, ok = versionOf(inner)
		case "url":
			s.url, ok = inner.(string)
		case "sha256":
			s.sha256, ok = inner.(string)
		default:
			return s, fmt.Errorf("%w: unknown key %q of a tensor: use dtype, shape and data or values, or model and name, or dtype, shape, url and sha256",
				models.ErrParams, key)
		}
		if !ok {
			return s, fmt.Errorf("%w: %s of a tensor has the wrong type", models.ErrParams, key)
		}
	}
	return s, nil
}

func shapeOf(v any) (tensor.Shape, bool) {
	list, ok := v.([]any)
	if !ok || len(list) > tensor.MaxRank {
		return nil, false
	}
	shape := make(tensor.Shape, len(list))
	for i, one := range list {
		n, ok := one.(int64)
		if !ok || n < 0 {
			return nil, false
		}
		shape[i] = n
	}
	return shape, true
}

func versionOf(v any) (uint64, bool) {
	n, ok := v.(int64)
	return uint64(max(n, 0)), ok && n >= 0
}

// tensor makes a tensor from an object.
func (in *incoming) tensor(ctx context.Context, v any) (*tensor.Tensor, error) {
	s, err := readTensorSpec(v)
	if err != nil {
		return nil, err
	}
	if s.model != "" {
		return in.fromModel(ctx, s)
	}
	if s.dtype, err = parseDType(s.dt); err != nil {
		return nil, err
	}
	switch {
	case s.hasValues:
		return in.fromValues(s)
	case s.hasData:
		return in.fromBase64(ctx, s)
	case s.url != "":
		return in.fromURL(ctx, s)
	}
	return nil, fmt.Errorf("%w: a tensor needs data, values, a model or a url", models.ErrParams)
}

// byteSize returns the size of the tensor's elements, or an error if it overflows.
func (s tensorSpec) byteSize() (int64, error) {
	if !s.hasShape {
		return 0, fmt.Errorf("%w: the shape of a tensor is missing", models.ErrParams)
	}
	spec := tensor.Spec{DType: s.dtype, Shape: s.shape}
	if err := spec.Validate(math.MaxInt64); err != nil {
		return 0, fmt.Errorf("%w: %w", models.ErrParams, err)
	}
	return spec.ByteLen()
}

// fromBase64 decodes directly into the tensor's memory. It checks the length before it allocates.
func (in *incoming) fromBase64(ctx context.Context, s tensorSpec) (*tensor.Tensor, error) {
	want, err := s.byteSize()
	if err != nil {
		return nil, err
	}
	if have := base64Bytes(s.data); have != want {
		return nil, fmt.Errorf("%w: a tensor of dtype %v and shape %v has %d bytes, and data has %d", models.ErrParams, s.dtype, s.shape, want, have)
	}
	if err := chargeFrom(ctx).Add(want); err != nil {
		return nil, err
	}
	t, err := tensor.Zeros(in.c.dev, s.dtype, s.shape)
	if err != nil {
		return nil, err
	}
	in.held = append(in.held, t)
	if err := t.FillFrom(base64.NewDecoder(base64.StdEncoding, newStringReader(s.data))); err != nil {
		return nil, fmt.Errorf("%w: data is not base64: %w", models.ErrParams, err)
	}
	return t, nil
}

// fromURL fetches a tensor and verifies its digest.
func (in *incoming) fromURL(ctx context.Context, s tensorSpec) (*tensor.Tensor, error) {
	if in.c.Models == nil {
		return nil, fmt.Errorf("%w: this gateway fetches no URLs", models.ErrRefused)
	}
	size, err := s.byteSize()
	if err != nil {
		return nil, err
	}
	fetched, err := in.c.Models.FetchTensor(ctx, s.url, s.dtype, s.shape, size, s.sha256)
	if err != nil {
		return nil, err
	}
	in.held = append(in.held, fetched)
	return fetched.Value, nil
}

// base64Bytes returns the decoded length of padded base64.
func base64Bytes(text string) int64 {
	n := int64(base64.StdEncoding.DecodedLen(len(text)))
	for i := len(text) - 1; i >= 0 && i >= len(text)-2 && text[i] == '='; i-- {
		n--
	}
	return n
}

// fromModel borrows a tensor of a published model without a copy. The lease ends with the call.
func (in *incoming) fromModel(ctx context.Context, s tensorSpec) (*tensor.Tensor, error) {
	if s.name == "" {
		return nil, fmt.Errorf("%w: a tensor of a model needs a name", models.ErrParams)
	}
	h, err := in.acquire(ctx, s.model, s.version)
	if err != nil {
		return nil, err
	}
	t, found := h.StateDict().Get(s.name)
	if !found {
		return nil, fmt.Errorf("%q has no tensor %q: %w", s.model, s.name, endpoint.ErrNotFound)
	}
	return t, nil
}

// stateDict borrows all tensors of a published model.
func (in *incoming) stateDict(ctx context.Context, v any) (any, error) {
	object, _ := v.(map[string]any)
	model, _ := object["model"].(string)
	version, ok := versionOf(object["version"])
	if _, given := object["version"]; model == "" || given && !ok {
		return nil, fmt.Errorf("%w: %s is {\"model\": NAME} or {\"model\": NAME, \"version\": N}", models.ErrParams, stateDictKey)
	}
	h, err := in.acquire(ctx, model, version)
	if err != nil {
		return nil, err
	}
	return h.StateDict(), nil
}

func (in *incoming) acquire(ctx context.Context, name string, version uint64) (*endpoint.Handle, error) {
	if in.client == nil {
		return nil, fmt.Errorf("model %q: %w", name, endpoint.ErrUnavailable)
	}
	if err := in.c.env.Allow(ctx, access.Acquire, name); err != nil {
		return nil, err
	}
	ctx, unbind := in.c.env.Owner.Bind(ctx)
	defer unbind()
	h, err := in.client.Acquire(ctx, name, endpoint.AcquireOptions{Version: version})
	if err != nil {
		return nil, fmt.Errorf("model %q: %w", name, err)
	}
	in.held = append(in.held, h)
	return h, nil
}
