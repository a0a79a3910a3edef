package codec

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

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
		if IsNull(raw) && t.Kind() == reflect.Slice {
			return nil
		}
		if _, _, err := lengthOf(raw, t); err != nil {
			return err
		}
		i := 0
		for item := range message.Items(raw) {
			if err := explain(item, t.Elem()); err != nil {
				return inElement(i, err)
			}
			i++
		}
		return nil
	case reflect.Map:
		if !IsNull(raw) && raw[0]>>5 != 5 {
			return mismatch(raw, t)
		}
		if t.Key().Kind() != reflect.String {
			return nil
		}
		for key, value := range message.Pairs(raw) {
			name, err := keyText(key)
			if err != nil {
				return err
			}
			if err := explain(value, t.Elem()); err != nil {
				return inKey(string(name), err)
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

// partsOf returns the values of a struct's fields by name. They share the memory of raw.
func partsOf(raw message.RawMessage, t reflect.Type) (map[string]message.RawMessage, error) {
	if len(raw) == 0 || raw[0]>>5 != message.MajorMap {
		return nil, mismatch(raw, t)
	}
	parts := map[string]message.RawMessage{}
	for key, value := range message.Pairs(raw) {
		name, err := keyText(key)
		if err != nil {
			return nil, err
		}
		if _, ok := parts[string(name)]; ok {
			return nil, errTwice(name)
		}
		parts[string(name)] = value
	}
	return parts, nil
}

// keyText returns a key that must be a text.
func keyText(key message.RawMessage) ([]byte, error) {
	name, ok := message.Text(key)
	if !ok {
		return nil, unfit("expected a text as a key, got %s", shownValue(key))
	}
	if !utf8.Valid(name) {
		return nil, unfit("the key %s is not UTF-8", status.Shown(string(name)))
	}
	return name, nil
}

// errTwice returns the error for a map with a duplicate key.
func errTwice(name []byte) error { return unfit("the key %s occurs twice", status.Shown(string(name))) }

// lengthOf returns the number of elements of a list for a slice or array, and what follows its head. An array must have
// the same length.
func lengthOf(raw message.RawMessage, t reflect.Type) (int, []byte, error) {
	major, n, rest, ok := message.Head(raw)
	if !ok || major != message.MajorArray || n > uint64(len(rest)) || t.Kind() == reflect.Array && uint64(t.Len()) != n {
		return 0, nil, mismatch(first(raw), t)
	}
	return int(n), rest, nil
}

// first returns the first item of data.
func first(data []byte) message.RawMessage {
	item, _, _ := message.Cut(data)
	return item
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
	case t == timeType:
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
		_, n, _, _ := message.Head(raw)
		return fmt.Sprintf("a list of %d", n)
	case 5:
		return "a map"
	}
	if raw[0]>>5 == message.MajorBytes {
		_, n, _, _ := message.Head(raw)
		return fmt.Sprintf("%d bytes", n)
	}
	if text, ok := message.Text(raw); ok {
		return "the text " + strconv.Quote(message.CutText(string(text[:min(len(text), 4*maxShown)]), maxShown))
	}
	var value any
	if message.UnmarshalPlain(raw, &value) != nil {
		return "something else"
	}
	if v, ok := value.(bool); ok {
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
