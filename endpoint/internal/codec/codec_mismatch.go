package codec

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Errors about arguments and results are written for callers: they name the field, the expected type and the received
// value. The errors of the cbor library name Go types of the server.

// fieldError is an error about a field with its path, such as x or layers[3].weight.
type fieldError struct {
	path string
	err  error
}

func (e *fieldError) Error() string { return "field " + e.path + ": " + e.err.Error() }
func (e *fieldError) Unwrap() error { return e.err }

// inField adds the name of a field, element or key to the front of the error's path.
func inField(name string, err error) error {
	below, ok := err.(*fieldError)
	switch {
	case !ok:
		return &fieldError{name, err}
	case strings.HasPrefix(below.path, "["):
		return &fieldError{name + below.path, below.err}
	}
	return &fieldError{name + "." + below.path, below.err}
}

func inElement(i int, err error) error { return inField("["+strconv.Itoa(i)+"]", err) }

// inKey adds a map key, which a peer chose, to the error's path.
func inKey(key any, err error) error { return inField("["+status.Shown(fmt.Sprint(key))+"]", err) }

// unfit returns an error about a value that does not match its type. Its text must not refer to the encoding.
func unfit(format string, args ...any) error {
	return status.WithClass(message.ErrEncoding, fmt.Errorf(format, args...))
}

// mismatch returns the error for an item raw that is not a t.
func mismatch(raw message.RawMessage, t reflect.Type) error {
	if isNumber(raw) && isNumeric(t) {
		return unfit("%s does not fit %s", shownValue(raw), expected(t))
	}
	return unfit("expected %s, got %s", expected(t), shownValue(raw))
}

// explain returns an error that describes why raw does not match t after the cbor library has refused it, or nil if it
// finds no reason.
func explain(raw message.RawMessage, t reflect.Type) error {
	for t.Kind() == reflect.Pointer && !IsTensor(t) {
		if IsNull(raw) {
			return nil
		}
		t = t.Elem()
	}
	switch {
	case IsTensor(t), t.Kind() == reflect.Interface:
		return nil
	case encodedWhole(t) || t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return explainWhole(raw, t)
	}
	switch t.Kind() {
	case reflect.Struct:
		return explainStruct(raw, t)
	case reflect.Slice, reflect.Array:
		list, err := listOf(raw, t)
		if err != nil || IsNull(raw) {
			return err
		}
		for i, item := range list {
			if err := explain(item, t.Elem()); err != nil {
				return inElement(i, err)
			}
		}
		return nil
	case reflect.Map:
		if !IsNull(raw) && raw[0]>>5 != 5 {
			return mismatch(raw, t)
		}
		var parts map[string]message.RawMessage
		if t.Key().Kind() != reflect.String || message.UnmarshalPayload(raw, &parts) != nil {
			return nil
		}
		for _, key := range slices.Sorted(maps.Keys(parts)) {
			if err := explain(parts[key], t.Elem()); err != nil {
				return inKey(key, err)
			}
		}
		return nil
	}
	return explainWhole(raw, t)
}

// explainWhole returns an error if raw cannot be decoded as a t.
func explainWhole(raw message.RawMessage, t reflect.Type) error {
	if message.UnmarshalPlain(raw, reflect.New(t).Interface()) != nil {
		return mismatch(raw, t)
	}
	return nil
}

func explainStruct(raw message.RawMessage, t reflect.Type) error {
	parts, err := partsOf(raw, t)
	if err != nil {
		return err
	}
	for _, f := range fieldsOf(t) {
		part, ok := parts[f.name]
		if !ok {
			continue
		}
		if err := explain(part, f.typ); err != nil {
			return inField(f.name, err)
		}
	}
	return nil
}

// partsOf returns the values of a struct's fields by name.
func partsOf(raw message.RawMessage, t reflect.Type) (map[string]message.RawMessage, error) {
	if len(raw) == 0 || raw[0]>>5 != 5 {
		return nil, mismatch(raw, t)
	}
	var parts map[string]message.RawMessage
	if err := message.UnmarshalPayload(raw, &parts); err != nil {
		return nil, err
	}
	return parts, nil
}

// listOf returns the elements of a slice or array. An array must have the same length.
func listOf(raw message.RawMessage, t reflect.Type) ([]message.RawMessage, error) {
	if IsNull(raw) && t.Kind() == reflect.Slice {
		return nil, nil
	}
	if len(raw) == 0 || raw[0]>>5 != 4 {
		return nil, mismatch(raw, t)
	}
	var list []message.RawMessage
	if err := message.UnmarshalPayload(raw, &list); err != nil {
		return nil, err
	}
	if t.Kind() == reflect.Array && t.Len() != len(list) {
		return nil, mismatch(raw, t)
	}
	return list, nil
}

// expected describes the values of t.
func expected(t reflect.Type) string {
	for t.Kind() == reflect.Pointer && !IsTensor(t) {
		t = t.Elem()
	}
	switch {
	case t == tensorType:
		return "a tensor"
	case t == stateDictType:
		return "a state dict"
	case t == reflect.TypeFor[time.Time]():
		return "a time"
	case encodedWhole(t):
		return "a " + Clipped(TypeName(t))
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	case reflect.Float32, reflect.Float64:
		return "a number (" + t.Kind().String() + ")"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		return "a list"
	case reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return fmt.Sprintf("%d bytes", t.Len())
		}
		return fmt.Sprintf("a list of %d", t.Len())
	case reflect.Map:
		return "a map"
	case reflect.Struct:
		return "a map with the " + fieldNames(t)
	}
	return "an integer (" + t.Kind().String() + ")"
}

// maxNamedFields is the maximum number of fields in an error.
const maxNamedFields = 12

// fieldNames returns the field names of a struct, separated by commas.
func fieldNames(t reflect.Type) string {
	var names []string
	for _, f := range fieldsOf(t) {
		if len(names) == maxNamedFields {
			names = append(names, "…")
			break
		}
		names = append(names, Clipped(f.name))
	}
	switch len(names) {
	case 0:
		return "no fields"
	case 1:
		return "field " + names[0]
	}
	return "fields " + strings.Join(names, ", ")
}

// maxShown is the maximum number of bytes of a received string in an error.
const maxShown = 32

// shownValue describes the item raw.
func shownValue(raw message.RawMessage) string {
	if len(raw) == 0 || IsNull(raw) {
		return "nothing"
	}
	if tag, ok := message.PayloadTag(raw); ok {
		switch tag {
		case message.TagTensor:
			return "a tensor"
		case message.TagStateDict:
			return "a state dict"
		}
		return fmt.Sprintf("an item with the tag %d", tag)
	}
	switch raw[0] >> 5 {
	case 4:
		var list []message.RawMessage
		if message.UnmarshalPayload(raw, &list) == nil {
			return fmt.Sprintf("a list of %d", len(list))
		}
		return "a list"
	case 5:
		return "a map"
	}
	var value any
	if message.UnmarshalPlain(raw, &value) != nil {
		return "something else"
	}
	switch v := value.(type) {
	case string:
		return "the text " + strconv.Quote(message.CutText(v, maxShown))
	case []byte:
		return fmt.Sprintf("%d bytes", len(v))
	case bool:
		return strconv.FormatBool(v)
	}
	return message.CutText(fmt.Sprintf("the number %v", value), maxShown)
}

// isNumber reports whether an item is an integer or a floating-point number.
func isNumber(raw message.RawMessage) bool {
	return len(raw) > 0 && (raw[0]>>5 <= 1 || raw[0] >= 0xf9 && raw[0] <= 0xfb)
}

func isNumeric(t reflect.Type) bool {
	return t.Kind() >= reflect.Int && t.Kind() <= reflect.Float64
}
