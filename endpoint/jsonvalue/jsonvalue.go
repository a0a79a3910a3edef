// Package jsonvalue parses JSON into arguments of calls whose types are unknown to the caller.
package jsonvalue

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// Parse parses one JSON value into an argument for [endpoint.Call] if the function's types are unknown. Objects become
// map[string]any and arrays []any. Integers become int64, or uint64 if they are too large for that, so that they fit
// integer fields. Other numbers become float64. It returns [endpoint.ErrInvalid] for invalid JSON, for numbers over 64
// bits, and for text after the value.
func Parse(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("%w: JSON: %w", endpoint.ErrInvalid, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("%w: JSON: unexpected text after the value", endpoint.ErrInvalid)
	}
	return withNumbers(v)
}

// withNumbers replaces the json.Number values in v by integers and floats.
func withNumbers(v any) (_ any, err error) {
	switch v := v.(type) {
	case json.Number:
		return parseNumber(v)
	case []any:
		for i := range v {
			if v[i], err = withNumbers(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for key := range v {
			if v[key], err = withNumbers(v[key]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

func parseNumber(n json.Number) (any, error) {
	if n == "-0" {
		return math.Copysign(0, -1), nil // encoders of floating-point numbers write -0.0 like this
	}
	if !strings.ContainsAny(n.String(), ".eE") {
		if i, err := n.Int64(); err == nil {
			return i, nil
		}
		var u uint64
		if err := json.Unmarshal([]byte(n), &u); err != nil {
			return nil, fmt.Errorf("%w: JSON: %s does not fit into 64 bits", endpoint.ErrInvalid, n)
		}
		return u, nil
	}
	f, err := n.Float64()
	if err != nil || math.IsInf(f, 0) {
		return nil, fmt.Errorf("%w: JSON: %s does not fit into 64 bits", endpoint.ErrInvalid, n)
	}
	return f, nil
}
