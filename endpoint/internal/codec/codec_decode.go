package codec

import (
	"errors"
	"fmt"
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
	return d.decode(raw, v)
}

// CloseAll closes the decoded tensors and state dicts.
func CloseAll(list []interface{ Close() error }) {
	for _, c := range list {
		_ = c.Close() // best effort: the values are discarded
	}
}

func (d *decoder) decode(raw message.RawMessage, v reflect.Value) error {
	t := v.Type()
	if !MayHoldTensors(t) && !holdsArray(t) {
		return d.decodePlain(raw, v)
	}
	if IsNull(raw) {
		v.SetZero()
		return nil
	}
	switch {
	case byValue(t):
		return errNotPointer(t.String())
	case t == tensorType:
		made, err := d.decodeTensor(raw)
		if err == nil {
			v.Set(reflect.ValueOf(made))
		}
		return err
	case t == stateDictType:
		made, err := d.decodeStateDict(raw)
		if err == nil {
			v.Set(reflect.ValueOf(made))
		}
		return err
	}
	switch t.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		return d.decode(raw, v.Elem())
	case reflect.Interface:
		return d.decodeAny(raw, v)
	case reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 && raw[0]>>5 == 2 {
			return decodeBytes(raw, v)
		}
		return d.decodeList(raw, v)
	case reflect.Slice:
		return d.decodeList(raw, v)
	case reflect.Map:
		return d.decodeMap(raw, v)
	}
	return d.decodeStruct(raw, v)
}

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
	var parts map[string]message.RawMessage
	if t.Kind() != reflect.Struct || message.UnmarshalPlain(raw, &parts) != nil {
		return nil
	}
	if err := unknown(parts, t); err != nil {
		return err
	}
	for _, f := range fieldsOf(t) {
		if part, ok := parts[f.name]; ok {
			if err := unknownField(part, f.typ); err != nil {
				return inField(f.name, err)
			}
		}
	}
	return nil
}

// unknown returns an error if the struct lacks a field for one of the parts.
func unknown(parts map[string]message.RawMessage, t reflect.Type) error {
	known := requirementsFor(t).fields
	for name := range parts {
		if _, ok := known[name]; !ok {
			return unfit("there is no field %s; expected %s", status.Shown(name), expected(t))
		}
	}
	return nil
}

// IsNull reports whether an item is null or undefined.
func IsNull(raw message.RawMessage) bool { return len(raw) == 1 && (raw[0] == 0xf6 || raw[0] == 0xf7) }

func (d *decoder) decodeList(raw message.RawMessage, v reflect.Value) error {
	list, err := listOf(raw, v.Type())
	if err != nil {
		return err
	}
	if v.Kind() == reflect.Slice {
		v.Set(reflect.MakeSlice(v.Type(), len(list), len(list)))
	}
	for i, raw := range list {
		if err := d.decode(raw, v.Index(i)); err != nil {
			return inElement(i, err)
		}
	}
	return nil
}

func (d *decoder) decodeMap(raw message.RawMessage, v reflect.Value) error {
	t := v.Type()
	if raw[0]>>5 != 5 {
		return mismatch(raw, t)
	}
	parts := reflect.New(reflect.MapOf(t.Key(), reflect.TypeFor[message.RawMessage]()))
	if err := message.UnmarshalPayload(raw, parts.Interface()); err != nil {
		return err
	}
	v.Set(reflect.MakeMapWithSize(t, parts.Elem().Len()))
	for it := parts.Elem().MapRange(); it.Next(); {
		value := reflect.New(t.Elem()).Elem()
		if err := d.decode(it.Value().Interface().(message.RawMessage), value); err != nil {
			return inKey(it.Key(), err)
		}
		v.SetMapIndex(it.Key(), value)
	}
	return nil
}

func (d *decoder) decodeStruct(raw message.RawMessage, v reflect.Value) error {
	t := v.Type()
	parts, err := partsOf(raw, t)
	if err != nil {
		return err
	}
	if d.strict {
		if err := unknown(parts, t); err != nil {
			return err
		}
	}
	for _, f := range fieldsOf(t) {
		raw, ok := parts[f.name]
		switch absent := !ok || IsNull(raw) && !nullable(f.typ); {
		case absent && d.strict && !requirementsFor(t).fields[f.name].optional:
			return inField(f.name, noValue(f.typ))
		case absent:
			continue
		}
		if err := d.decode(raw, f.make(v)); err != nil {
			return inField(f.name, err)
		}
	}
	return nil
}

// decodeAny decodes into an untyped target: tensors and state dicts as such, maps with string keys as map[string]any,
// lists as []any, and other items as the cbor library does.
func (d *decoder) decodeAny(raw message.RawMessage, v reflect.Value) error {
	if v.NumMethod() > 0 {
		return fmt.Errorf("%w: cannot decode a value of interface type %s", message.ErrEncoding, v.Type())
	}
	target := reflect.New(anyTarget(raw)).Elem()
	var err error
	if target.Kind() == reflect.Interface {
		err = message.UnmarshalPlain(raw, target.Addr().Interface())
	} else {
		err = d.decode(raw, target)
	}
	if err == nil {
		v.Set(target)
	}
	return err
}

// anyTarget returns the Go type for an item, by its first byte (RFC 8949 §3).
func anyTarget(raw message.RawMessage) reflect.Type {
	if tag, ok := message.PayloadTag(raw); ok {
		switch tag {
		case message.TagTensor:
			return tensorType
		case message.TagStateDict:
			return stateDictType
		}
	}
	switch raw[0] >> 5 {
	case 4:
		return reflect.TypeFor[[]any]()
	case 5:
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
