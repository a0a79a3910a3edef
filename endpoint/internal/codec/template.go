package codec

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// Template builds a key from some fields of an argument.
type Template struct {
	Text  string // the source text
	parts []part
}

// part is a piece of text, or a field if path is not nil.
type part struct {
	text string
	path []string
}

// ParseTemplate parses a template and validates its fields against the type. "{{" and "}}" are literal braces.
func ParseTemplate(text string, in reflect.Type) (*Template, error) {
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("%w: key %q: not UTF-8", status.ErrInvalid, text)
	}
	t := &Template{Text: text}
	rest := text
	for rest != "" {
		i := strings.IndexAny(rest, "{}")
		switch {
		case i < 0:
			t.parts, rest = append(t.parts, part{text: rest}), ""
		case strings.HasPrefix(rest[i:], "{{") || strings.HasPrefix(rest[i:], "}}"):
			t.parts, rest = append(t.parts, part{text: rest[:i+1]}), rest[i+2:]
		case rest[i] == '}':
			return nil, fmt.Errorf("%w: key %q: unmatched closing brace", status.ErrInvalid, text)
		default:
			end := strings.IndexByte(rest[i:], '}')
			if end < 0 {
				return nil, fmt.Errorf("%w: key %q: unmatched opening brace", status.ErrInvalid, text)
			}
			path := strings.Split(rest[i+1:i+end], ".")
			if err := checkPath(in, path); err != nil {
				return nil, fmt.Errorf("key %q: %w", text, err)
			}
			t.parts = append(t.parts, part{text: rest[:i]}, part{path: path})
			rest = rest[i+end+1:]
		}
	}
	t.separate()
	return t, nil
}

// separate inserts a comma after each field if the first character of the next part could continue its value. Otherwise
// 1 and 23 would make the same key as 12 and 3.
func (t *Template) separate() {
	var parts []part
	field := false // whether the last part is a field
	for _, p := range t.parts {
		if p.path == nil && p.text == "" {
			continue
		}
		if field && (p.path != nil || strings.IndexByte("0123456789.e", p.text[0]) >= 0) {
			parts = append(parts, part{text: ","})
		}
		parts, field = append(parts, p), p.path != nil
	}
	t.parts = parts
}

// checkPath follows a path through the type, which must end at a scalar.
func checkPath(t reflect.Type, path []string) error {
	for _, name := range path {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		f, ok := fieldNamed(t, name)
		if !ok {
			return fmt.Errorf("%w: %s has no field %q", status.ErrInvalid, t, name)
		}
		t = f.typ
	}
	for t.Kind() == reflect.Pointer && t != tensorType && t != stateDictType {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Bool, reflect.String, reflect.Float32, reflect.Float64,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return nil
	}
	return fmt.Errorf("%w: field %q is a %s, fields of a key must be scalars", status.ErrInvalid, strings.Join(path, "."), t)
}

// fieldNamed returns the field with that encoded name.
func fieldNamed(t reflect.Type, name string) (field, bool) {
	if t.Kind() == reflect.Struct {
		for _, f := range fieldsOf(t) {
			if f.name == name {
				return f, true
			}
		}
	}
	return field{}, false
}

// Expand returns the key of an argument. in must have the type for which the template was parsed. Different values have
// different keys for any text between them: strings are quoted, and other values are separated. A long key is replaced
// by its hash.
func (t *Template) Expand(in reflect.Value) string {
	var b strings.Builder
	for _, p := range t.parts {
		if p.path == nil {
			b.WriteString(p.text)
			continue
		}
		b.WriteString(scalar(follow(in, p.path)))
	}
	if b.Len() <= maxPlainKey {
		return plainKey + b.String()
	}
	sum := sha256.Sum256([]byte(b.String()))
	return hashedKey + hex.EncodeToString(sum[:])
}

// maxPlainKey is the maximum length of a key that contains the values. Longer ones are hashed, so that peers cannot
// make the server store large keys.
const maxPlainKey = 128

// Prefixes that distinguish plain keys from hashed keys.
const plainKey, hashedKey = "key:", "hash:"

// follow returns the field at a path that checkPath has validated, or the zero Value if a pointer on the path is nil.
func follow(v reflect.Value, path []string) reflect.Value {
	for _, name := range path {
		if v = deref(v); !v.IsValid() {
			return v
		}
		f, _ := fieldNamed(v.Type(), name)
		if v = f.get(v); !v.IsValid() {
			return v
		}
	}
	return deref(v)
}

func deref(v reflect.Value) reflect.Value {
	for v.IsValid() && v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	return v
}

// scalar formats a value by its kind. It does not use the type's String method, which may return equal text for
// different values.
func scalar(v reflect.Value) string {
	switch {
	case !v.IsValid():
		return "nil"
	case v.Kind() == reflect.String:
		return strconv.Quote(v.String())
	case v.Kind() == reflect.Bool:
		return strconv.FormatBool(v.Bool())
	case v.CanInt():
		return strconv.FormatInt(v.Int(), 10)
	case v.CanUint():
		return strconv.FormatUint(v.Uint(), 10)
	}
	return strconv.FormatFloat(v.Float(), 'g', -1, v.Type().Bits())
}
