package codec

import (
	"errors"
	"fmt"
	"math/big"
	"reflect"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// decoder decodes one payload from a peer. It trusts nothing in it.
type decoder struct {
	storages []*tensor.Storage // borrowed
	strict   bool              // fields that the target lacks are errors
	made     []interface{ Close() error }
}

// DecodePayload decodes value into out, a non-nil pointer. It borrows the storages: decoded tensors hold their own
// references. It returns the decoded tensors and state dicts, which the caller closes. On error it has closed them. If
// strict is true, fields that out lacks are errors, so that a misspelled argument is not silently ignored.
func DecodePayload(value message.RawMessage, storages []*tensor.Storage, out any, strict bool) ([]interface{ Close() error }, error) {
	if len(value) == 0 {
		return nil, fmt.Errorf("%w: the payload is empty", message.ErrEncoding)
	}
	d := &decoder{storages: storages, strict: strict}
	decoded := false
	defer func() { // also if an unmarshaler panics
		if !decoded {
			CloseAll(d.made)
			reflect.ValueOf(out).Elem().SetZero() // it may contain closed tensors
		}
	}()
	if err := d.decodeTop(value, reflect.ValueOf(out).Elem()); err != nil {
		return nil, err
	}
	decoded = true
	return d.made, nil
}

// decodeTop decodes the whole value. If the target is a struct, null is an argument without fields.
func (d *decoder) decodeTop(raw message.RawMessage, v reflect.Value) error {
	if t := v.Type(); d.strict && IsNull(raw) && !nullable(t) {
		if t.Kind() != reflect.Struct {
			return mismatch(raw, t)
		}
		raw = NoFields
	}
	if t := v.Type(); !MayHoldTensors(t) && !holdsArray(t) {
		return d.decodePlain(raw, v)
	}
	if err := message.ValidatePayload(raw); err != nil {
		return err
	}
	_, err := d.decode(raw, v)
	return err
}

// CloseAll closes the decoded tensors and state dicts.
func CloseAll(list []interface{ Close() error }) {
	for _, c := range list {
		_ = c.Close() // best effort: the values are discarded
	}
}

// decode decodes the first item of data, which was validated, and returns the rest. Items are cut out of data without a
// copy and each is read once, so the cost does not depend on the depth.
func (d *decoder) decode(data []byte, v reflect.Value) (rest []byte, err error) {
	t := v.Type()
	if !MayHoldTensors(t) && !holdsArray(t) {
		item, rest, ok := message.Cut(data)
		if !ok {
			return nil, errTruncated
		}
		return rest, d.decodePlain(item, v)
	}
	if len(data) > 0 && IsNull(data[:1]) {
		v.SetZero()
		return data[1:], nil
	}
	switch {
	case byValue(t):
		return nil, errNotPointer(t.String())
	case t == tensorType:
		return d.cut(data, v, func(raw message.RawMessage, v reflect.Value) error {
			made, err := d.decodeTensor(raw)
			if err == nil {
				v.Set(reflect.ValueOf(made))
			}
			return err
		})
	case t == stateDictType:
		return d.cut(data, v, func(raw message.RawMessage, v reflect.Value) error {
			made, err := d.decodeStateDict(raw)
			if err == nil {
				v.Set(reflect.ValueOf(made))
			}
			return err
		})
	}
	switch t.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		return d.decode(data, v.Elem())
	case reflect.Interface:
		return d.decodeAny(data, v)
	case reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 && data[0]>>5 == message.MajorBytes {
			return d.cut(data, v, decodeBytes)
		}
		return d.decodeList(data, v)
	case reflect.Slice:
		return d.decodeList(data, v)
	case reflect.Map:
		return d.decodeMap(data, v)
	}
	if layoutOf(t).list {
		return d.decodeFieldList(data, v)
	}
	return d.decodeStruct(data, v)
}

// cut decodes the first item of data by decode.
func (d *decoder) cut(data []byte, v reflect.Value, decode func(message.RawMessage, reflect.Value) error) ([]byte, error) {
	item, rest, ok := message.Cut(data)
	if !ok {
		return nil, errTruncated
	}
	return rest, decode(item, v)
}

var errTruncated = fmt.Errorf("%w: the item ends too early", message.ErrEncoding)

// decodePlain decodes a value without tensors and arrays. The library decodes it. If that fails, decodePlain looks for
// an error that names the field.
func (d *decoder) decodePlain(raw message.RawMessage, v reflect.Value) error {
	decode := message.UnmarshalPlain
	if d.strict {
		decode = message.UnmarshalStrict
	}
	err := decode(raw, v.Addr().Interface())
	if err == nil && d.strict {
		return missing(raw, v.Type())
	}
	if err == nil || errors.Is(err, message.ErrBounds) {
		return err
	}
	if why := explain(raw, v.Type()); why != nil {
		return why
	}
	if d.strict {
		if why := unknownField(raw, v.Type()); why != nil {
			return why
		}
	}
	return err
}

// unknownField returns an error with the name of a field that a struct without tensors lacks, or nil. The cbor
// library's error does not contain the name.
func unknownField(raw message.RawMessage, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || encodedWhole(t) {
		return nil
	}
	l := layoutOf(t)
	for key, value := range message.Pairs(raw) {
		name, err := keyText(key)
		if err != nil {
			return err
		}
		i, ok := l.byName[string(name)]
		if !ok {
			return errUnknown(name, t)
		}
		if err := unknownField(value, l.fields[i].typ); err != nil {
			return inField(string(name), err)
		}
	}
	return nil
}

// errUnknown returns the error for a field that t lacks.
func errUnknown(name []byte, t reflect.Type) error {
	return unfit("there is no field %s; expected %s", status.Shown(string(name)), expected(t))
}

// IsNull reports whether an item is null or undefined.
func IsNull(raw message.RawMessage) bool { return len(raw) == 1 && (raw[0] == 0xf6 || raw[0] == 0xf7) }

func (d *decoder) decodeList(data []byte, v reflect.Value) ([]byte, error) {
	n, rest, err := lengthOf(data, v.Type())
	if err != nil {
		return nil, err
	}
	if v.Kind() == reflect.Slice {
		v.Set(reflect.MakeSlice(v.Type(), n, n))
	}
	for i := range n {
		if v.Kind() == reflect.Slice && d.lacksTensor(rest, v.Type()) {
			return nil, inElement(i, noValue(v.Type().Elem()))
		}
		if rest, err = d.decode(rest, v.Index(i)); err != nil {
			return nil, inElement(i, err)
		}
	}
	return rest, nil
}

// lacksTensor reports whether the next item of an argument is null where t, a slice or a map, has a tensor. A function does
// not expect nil tensors there, unlike in an array, which has no other way to omit one.
func (d *decoder) lacksTensor(data []byte, t reflect.Type) bool {
	return d.strict && len(data) > 0 && IsNull(data[:1]) && IsTensor(t.Elem())
}

// decodeFieldList decodes a struct that is encoded as a list of its fields.
func (d *decoder) decodeFieldList(data []byte, v reflect.Value) ([]byte, error) {
	t := v.Type()
	fields := fieldsOf(t)
	major, n, rest, ok := message.Head(data)
	if !ok || major != message.MajorArray || n != uint64(len(fields)) {
		return nil, mismatch(first(data), t)
	}
	var err error
	for i := range fields {
		f := &fields[i]
		if rest, err = d.decode(rest, f.make(v)); err != nil {
			return nil, inField(f.name, err)
		}
	}
	return rest, nil
}

func (d *decoder) decodeMap(data []byte, v reflect.Value) ([]byte, error) {
	t := v.Type()
	major, n, rest, ok := message.Head(data)
	if !ok || major != message.MajorMap {
		return nil, mismatch(first(data), t)
	}
	v.Set(reflect.MakeMapWithSize(t, int(min(n, uint64(len(rest))))))
	for range n {
		key, after, ok := message.Cut(rest)
		if !ok {
			return nil, errTruncated
		}
		k := reflect.New(t.Key()).Elem()
		if _, err := d.decode(key, k); err != nil {
			return nil, err
		}
		if v.MapIndex(k).IsValid() {
			return nil, unfit("the key %s occurs twice", status.Shown(fmt.Sprint(k)))
		}
		if d.lacksTensor(after, t) {
			return nil, inKey(k, noValue(t.Elem()))
		}
		value := reflect.New(t.Elem()).Elem()
		var err error
		if rest, err = d.decode(after, value); err != nil {
			return nil, inKey(k, err)
		}
		v.SetMapIndex(k, value)
	}
	return rest, nil
}

func (d *decoder) decodeStruct(data []byte, v reflect.Value) ([]byte, error) {
	t := v.Type()
	major, n, rest, ok := message.Head(data)
	if !ok || major != message.MajorMap {
		return nil, mismatch(first(data), t)
	}
	l := layoutOf(t)
	found := make([]bool, len(l.fields))
	var others map[string]bool // names that t lacks
	for range n {
		key, value, ok := message.Cut(rest)
		if !ok || len(value) == 0 {
			return nil, errTruncated
		}
		name, err := keyText(key)
		if err != nil {
			return nil, err
		}
		i, known := l.byName[string(name)]
		switch {
		case known && found[i], others[string(name)]:
			return nil, errTwice(name)
		case !known && d.strict:
			return nil, errUnknown(name, t)
		case !known:
			if others == nil {
				others = map[string]bool{}
			}
			others[string(name)] = true
			if _, rest, ok = message.Cut(value); !ok {
				return nil, errTruncated
			}
			continue
		}
		f := &l.fields[i]
		found[i] = true
		if IsNull(value[:1]) && !nullable(f.typ) {
			if d.strict && !requirementsFor(t).fields[f.name].optional {
				return nil, inField(f.name, noValue(f.typ))
			}
			rest = value[1:]
			continue
		}
		if rest, err = d.decode(value, f.make(v)); err != nil {
			return nil, inField(f.name, err)
		}
	}
	for i, f := range l.fields {
		if d.strict && !found[i] && !requirementsFor(t).fields[f.name].optional {
			return nil, inField(f.name, noValue(f.typ))
		}
	}
	return rest, nil
}

// decodeUntyped decodes an item without tensors, lists and maps into an empty interface. An integer below -2^63 is
// refused: only a big.Int has it, which cannot be encoded again.
func decodeUntyped(raw message.RawMessage, v reflect.Value) error {
	if err := message.UnmarshalPlain(raw, v.Addr().Interface()); err != nil {
		return err
	}
	if n, ok := v.Interface().(big.Int); ok {
		return unfit("the integer %s does not fit 64 bits", n.String())
	}
	return nil
}

// decodeAny decodes into an untyped target: tensors and state dicts as such, maps with string keys as map[string]any,
// lists as []any, and other items as the cbor library does.
func (d *decoder) decodeAny(data []byte, v reflect.Value) ([]byte, error) {
	if v.NumMethod() > 0 {
		return nil, fmt.Errorf("%w: cannot decode a value of interface type %s", message.ErrEncoding, v.Type())
	}
	target := reflect.New(anyTarget(data)).Elem()
	var err error
	var rest []byte
	if target.Kind() == reflect.Interface {
		rest, err = d.cut(data, target, decodeUntyped)
	} else {
		rest, err = d.decode(data, target)
	}
	if err == nil {
		v.Set(target)
	}
	return rest, err
}

// anyTarget returns the Go type for the first item of data, by its head (RFC 8949 §3).
func anyTarget(data []byte) reflect.Type {
	switch major, n, _, _ := message.Head(data); {
	case major == message.MajorTag && n == message.TagTensor:
		return tensorType
	case major == message.MajorTag && n == message.TagStateDict:
		return stateDictType
	case major == message.MajorArray:
		return reflect.TypeFor[[]any]()
	case major == message.MajorMap:
		return reflect.TypeFor[map[string]any]()
	}
	return reflect.TypeFor[any]() // an unknown tag is refused there
}

// storage returns the storage with index i, or an error.
func (d *decoder) storage(i uint32) (*tensor.Storage, error) {
	if int64(i) >= int64(len(d.storages)) {
		return nil, fmt.Errorf("%w: storage %d of %d", message.ErrEncoding, i, len(d.storages))
	}
	return d.storages[i], nil
}

func (d *decoder) decodeTensor(raw message.RawMessage) (*tensor.Tensor, error) {
	if tag, ok := message.PayloadTag(raw); !ok || tag != message.TagTensor {
		return nil, mismatch(raw, tensorType)
	}
	var ref message.TensorRef
	if err := message.UnmarshalTagged(raw, message.TagTensor, &ref); err != nil {
		return nil, err
	}
	s, err := d.storage(ref.Handle)
	if err != nil {
		return nil, err
	}
	spec := tensor.Spec{DType: tensor.DType(ref.DType), Shape: ref.Shape, ByteOffset: ref.ByteOffset}
	if len(ref.Strides) > 0 {
		spec.Strides = ref.Strides
	}
	t, err := tensor.New(s, spec)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", status.ErrInvalid, err)
	}
	d.made = append(d.made, t)
	return t, nil
}

func (d *decoder) decodeStateDict(raw message.RawMessage) (*module.StateDict, error) {
	if tag, ok := message.PayloadTag(raw); !ok || tag != message.TagStateDict {
		return nil, mismatch(raw, stateDictType)
	}
	var ref message.StateDictRef
	if err := message.UnmarshalTagged(raw, message.TagStateDict, &ref); err != nil {
		return nil, err
	}
	manifest, err := DecodeManifest(&ref.Manifest)
	if err != nil {
		return nil, err
	}
	storages := make([]*tensor.Storage, len(ref.Handles))
	for i, h := range ref.Handles {
		if storages[i], err = d.storage(h); err != nil {
			return nil, err
		}
	}
	sd, err := module.FromManifest(manifest, storages)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", status.ErrInvalid, err)
	}
	d.made = append(d.made, sd)
	return sd, nil
}
