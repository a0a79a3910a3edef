package codec

import (
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

var (
	timeType   = reflect.TypeFor[time.Time]()
	bigIntType = reflect.TypeFor[big.Int]()
	rawType    = reflect.TypeFor[message.RawMessage]()
)

// CheckType returns an error, [status.ErrInvalid], for a type whose values would not arrive as they are. It is called
// when an endpoint is registered.
func CheckType(t reflect.Type) error {
	return (&checker{seen: map[reflect.Type]bool{}}).check(t, t.String())
}

var checkedTypes sync.Map // checked to error

type checked struct {
	typ     reflect.Type
	untyped bool
}

// Carries is [CheckType] for a value that is about to be sent or received, whose type was not registered. It returns
// ErrCapability.
func Carries(t reflect.Type) error { return carries(t, false) }

// carries is [Carries]. If untyped is true, the receiver decodes the value without knowing its type, as part of an any.
func carries(t reflect.Type, untyped bool) error {
	key := checked{t, untyped}
	if err, ok := checkedTypes.Load(key); ok {
		err, _ := err.(error)
		return err
	}
	c := checker{untyped: untyped, seen: map[reflect.Type]bool{}}
	err := c.check(t, t.String())
	if err != nil && !errors.Is(err, status.ErrCapability) {
		text := strings.TrimPrefix(err.Error(), status.ErrInvalid.Error()+": ")
		err = status.Capability(status.WithClass(message.ErrEncoding, status.WithClass(message.ErrType, errors.New(text))))
	}
	checkedTypes.Store(key, err)
	return err
}

// checker checks one type and the types that it contains.
type checker struct {
	untyped bool // the receiver does not know the type
	seen    map[reflect.Type]bool
}

func refused(path, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", status.ErrInvalid, path, fmt.Sprintf(format, args...))
}

func (c *checker) check(t reflect.Type, path string) error {
	if IsTensor(t) || t == timeType || c.seen[t] {
		return nil
	}
	c.seen[t] = true
	if whole, err := c.checkSelfEncoding(t, path); whole || err != nil {
		return err
	}
	switch t.Kind() {
	case reflect.Interface:
		if t.NumMethod() > 0 {
			return refused(path, "the interface type %s cannot be decoded, use a concrete type", t)
		}
	case reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Uintptr:
		return refused(path, "a %s cannot be sent to another process", t.Kind())
	case reflect.Complex64, reflect.Complex128:
		return refused(path, "a %s cannot be encoded, send its real and imaginary parts", t.Kind())
	case reflect.Pointer:
		if k := t.Elem().Kind(); k == reflect.Pointer || k == reflect.Interface {
			return refused(path, "a %s that points to nil would arrive as nil: use a %s", t, t.Elem())
		}
		return c.check(t.Elem(), path)
	case reflect.Slice, reflect.Array:
		return c.check(t.Elem(), path)
	case reflect.Map:
		if err := c.checkKey(t.Key(), path+" key"); err != nil {
			return err
		}
		return c.check(t.Elem(), path)
	case reflect.Struct:
		return c.checkStruct(t, path)
	}
	return nil
}

func (c *checker) checkStruct(t reflect.Type, path string) error {
	if byValue(t) {
		return errNotPointer(path)
	}
	l := layoutOf(t)
	switch {
	case l.problem != "":
		return refused(path, "%s", l.problem)
	case l.content && len(l.fields) == 0:
		return refused(path, "the type %s has only unexported fields: send their values, or give it MarshalCBOR and UnmarshalCBOR", t)
	}
	for _, f := range l.fields {
		if !utf8.ValidString(f.name) {
			return refused(path, "the name %q of the field %s is not UTF-8", f.name, t.FieldByIndex(f.index).Name)
		}
		if _, err := specOf(f, path); err != nil {
			return err
		}
		if err := c.check(f.typ, path+"."+f.name); err != nil {
			return err
		}
	}
	return nil
}

// checkKey checks the type of a map's keys. Keys that encode themselves, and structs, would have no defined order.
func (c *checker) checkKey(t reflect.Type, path string) error {
	kind := t.Kind()
	if kind == reflect.Array && t.Elem().Kind() == reflect.Uint8 {
		kind = reflect.Uint8 // such as a UUID
	}
	switch {
	case c.untyped && (kind != reflect.String || encodesItself(t)):
		return refused(path, "a map in an any must have texts as keys, not %s", t)
	case encodesItself(t) && t.Kind() == reflect.Struct, kind == reflect.Complex64, kind == reflect.Complex128, kind == reflect.Uintptr:
	case kind >= reflect.Bool && kind <= reflect.Float64, kind == reflect.String:
		_, err := c.checkSelfEncoding(t, path)
		return err
	}
	return refused(path, "a map cannot have %s as keys: use texts, numbers or arrays of bytes", t)
}

// checkSelfEncoding reports whether the cbor library encodes t by its own methods. It returns an error if they do not
// encode all of t, or cannot be decoded.
func (c *checker) checkSelfEncoding(t reflect.Type, path string) (whole bool, err error) {
	switch {
	case t == bigIntType:
		return false, refused(path, "a big.Int cannot be encoded, send its text or an int64")
	case t == rawType:
		return true, nil
	case t.PkgPath() == rawType.PkgPath():
		return false, refused(path, "a %s cannot be encoded", t)
	}
	p := reflect.PointerTo(t)
	var method reflect.Method
	switch {
	case p.Implements(selfEncoder):
		if method, whole = t.MethodByName("MarshalCBOR"); !whole {
			method, whole = p.MethodByName("MarshalCBOR")
		}
	case p.Implements(binaryEncoder):
		if method, whole = t.MethodByName("MarshalBinary"); !whole {
			method, whole = p.MethodByName("MarshalBinary")
		}
	default: // a type that only decodes itself is encoded by its fields
		return p.Implements(selfDecoder) || p.Implements(binaryDecoder), nil
	}
	if t.Kind() == reflect.Struct && promoted(method) && (t.NumField() > 1 || t.Field(0).Type.Kind() != reflect.Struct) {
		return false, refused(path, "the %s of the type %s is that of an embedded field and loses the others: give that field a name", method.Name, t)
	}
	return whole, nil
}

// promoted reports whether a method is that of an embedded field. The compiler generates such methods.
func promoted(m reflect.Method) bool {
	pc := m.Func.Pointer()
	f := runtime.FuncForPC(pc)
	if f == nil {
		return false
	}
	file, _ := f.FileLine(pc)
	return file == "<autogenerated>"
}
