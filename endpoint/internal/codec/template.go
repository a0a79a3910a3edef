package codec

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// Template makes a key of some fields of an argument.
type Template struct {
	Text  string // as it was written
	parts []part
}

// part is a piece of text, or a field where path is not nil.
type part struct {
	text string
	path []string
}

// ParseTemplate reads a template and holds its fields against the type. "{{" and "}}" stand for braces.
func ParseTemplate(text string, in reflect.Type) (*Template, error) {
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
			return nil, fmt.Errorf("%w: key %q: a brace is closed that was not opened", status.ErrInvalid, text)
		default:
			end := strings.IndexByte(rest[i:], '}')
			if end < 0 {
				return nil, fmt.Errorf("%w: key %q: a brace is not closed", status.ErrInvalid, text)
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

// separate puts a comma behind each field whose end could not be told from what follows: 1 and 23 are not 12 and 3. No
// value goes on with another character than these where it might have ended.
func (t *Template) separate() {
	var parts []part
	field := false // the last part
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

// checkPath follows a path through the type, to a scalar at its end.
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
	return fmt.Errorf("%w: field %q is a %s, a key is made of scalars", status.ErrInvalid, strings.Join(path, "."), t)
}

// fieldNamed finds a field by its name on the wire.
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

// Expand makes the key for an argument, of the type that the template was parsed for. Different values make different
// keys, whatever stands between them: texts are quoted, and the end of other values can be told. One that would be long
// is replaced by its hash.
func (t *Template) Expand(in reflect.Value) string {
	var b strings.Builder
	for _, p := range t.parts {
		if p.path == nil {
			b.WriteString(p.text)
			continue
		}
		b.WriteString(scalar(follow(in, p.path)))
	}
	if b.Len() <= longKey {
		return plainKey + b.String()
	}
	sum := sha256.Sum256([]byte(b.String()))
	return hashedKey + hex.EncodeToString(sum[:])
}

// longKey is how many bytes a key that is made of values may have: what peers send is not kept as a key, however long
// it is.
const longKey = 128

// What keys of templates begin with, so that none of the one kind is one of the other.
const plainKey, hashedKey = "key:", "hash:"

// follow goes down a path that was checked. A nil pointer on the way gives the zero Value.
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

// scalar writes a value by its kind: a String method of its type could say the same of different values.
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
