package codec

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"unicode/utf8"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Payload is an encoded value and the storages that it refers to.
type Payload struct {
	Value    message.RawMessage // the encoded value
	Storages []*tensor.Storage  // the payload holds a reference to each
}

// Close releases the references.
func (p *Payload) Close() {
	for _, s := range p.Storages {
		s.Close()
	}
	p.Storages = nil
}

// Bytes returns the size of the storages and the encoded value.
func (p *Payload) Bytes() int64 {
	n := int64(len(p.Value))
	for _, s := range p.Storages {
		n += s.Bytes()
	}
	return n
}

// encoder encodes one value. It appends to Value, so that the cost does not depend on the depth.
type encoder struct {
	Payload
	index   map[*tensor.Storage]uint32
	depth   int
	deepest int
}

// EncodePayload encodes a value, which it borrows: the payload holds its own references to the storages. It waits for
// pending work on the devices, so that the bytes are complete when the payload is sent. It returns [ErrCapability] if a
// type has no encoding.
func EncodePayload(v any) (Payload, error) {
	p, err := encodeValue(v)
	return p, Unencodable(err)
}

// Unencodable returns ErrCapability if err reports a type that has no encoding.
func Unencodable(err error) error {
	if errors.Is(err, message.ErrType) {
		return status.Capability(err)
	}
	return err
}

func encodeValue(v any) (Payload, error) {
	if v == nil {
		return Payload{Value: message.RawMessage{0xf6}}, nil
	}
	if err := Carries(reflect.TypeOf(v)); err != nil {
		return Payload{}, err
	}
	if !MayHoldTensors(reflect.TypeOf(v)) {
		raw, err := appendPlain(nil, v)
		return Payload{Value: raw}, err
	}
	var e encoder
	encoded := false
	defer func() { // releases the references also if a marshaler panics
		if !encoded {
			e.Close()
		}
	}()
	err := e.encode(reflect.ValueOf(v))
	if err == nil && (len(e.Value) > checkedBytes || e.deepest > checkedDepth) {
		err = message.CheckPayload(e.Value)
	}
	if err == nil {
		err = synchronize(e.Storages)
	}
	if err != nil {
		return Payload{}, err
	}
	encoded = true
	return e.Payload, nil
}

// AppendPlain appends the encoding of a value that holds no tensors. It returns ErrCapability if the type has no encoding.
func AppendPlain(b []byte, v any) ([]byte, error) {
	if err := Carries(reflect.TypeOf(v)); err != nil {
		return b, err
	}
	return appendPlain(b, v)
}

// appendPlain is [AppendPlain] for a type that was checked.
func appendPlain(b []byte, v any) ([]byte, error) {
	at := len(b)
	b, err := appendLeaf(b, reflect.ValueOf(v), 0)
	if err == nil && len(b)-at > checkedBytes {
		err = message.CheckPayload(b[at:])
	}
	return b, err
}

// appendLeaf appends the encoding of a value that holds no tensors and is at the given depth.
func appendLeaf(b []byte, v reflect.Value, depth int) ([]byte, error) {
	t := v.Type()
	if err := checkNesting(v, depth); err != nil {
		return b, err
	}
	if t == bytesType { // often large
		content := v.Bytes()
		return append(message.AppendHead(b, message.MajorBytes, len(content)), content...), nil
	}
	at := len(b)
	b, err := message.AppendMarshal(b, v.Interface())
	if err == nil && mayHoldText(t) {
		if text := message.InvalidText(b[at:]); text != nil {
			return b, status.Capability(fmt.Errorf("%w: the text %q is not UTF-8: send it as bytes", status.ErrInvalid, message.CutText(string(text[:min(len(text), 4*maxShown)]), maxShown)))
		}
	}
	return b, err
}

var bytesType = reflect.TypeFor[[]byte]()

// checkedBytes is the minimum size of a payload that is validated before it is sent. A smaller one cannot exceed the
// receiver's limits on size and depth.
const (
	checkedBytes = message.MaxPairs
	checkedDepth = message.MaxPayloadDepth / 2
)

// maxDepth is the maximum depth of a value, including pointers and interfaces, which add no depth to the encoding.
const maxDepth = 4 * message.MaxPayloadDepth

// synchronize waits for pending work on the devices of the storages.
func synchronize(storages []*tensor.Storage) error {
	var done driver.Device
	for _, s := range storages {
		dev := s.Memory().Device()
		if dev == done {
			continue
		}
		if err := dev.Synchronize(); err != nil {
			return fmt.Errorf("wait for %s: %w", dev.Info(), err)
		}
		done = dev
	}
	return nil
}

func (e *encoder) encode(v reflect.Value) (err error) {
	t := v.Type()
	if !MayHoldTensors(t) {
		e.Value, err = appendLeaf(e.Value, v, e.depth)
		return err
	}
	e.depth++
	defer func() { e.depth-- }()
	e.deepest = max(e.deepest, e.depth)
	if e.depth > maxDepth { // a cyclic value would never end
		return errTooDeep
	}
	switch {
	case byValue(t):
		return errNotPointer(t.String())
	case (t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface) && v.IsNil(): // a nil slice or map is encoded as an empty one
		e.Value = append(e.Value, Nothing...)
		return nil
	case t == tensorType:
		return e.encodeTensor(v.Interface().(*tensor.Tensor))
	case t == stateDictType:
		return e.encodeStateDict(v.Interface().(*module.StateDict))
	}
	switch t.Kind() {
	case reflect.Pointer:
		return e.encode(v.Elem())
	case reflect.Interface:
		if err := carries(v.Elem().Type(), true); err != nil {
			return err
		}
		return e.encode(v.Elem())
	case reflect.Slice, reflect.Array:
		e.Value = message.AppendHead(e.Value, message.MajorArray, v.Len())
		for i := range v.Len() {
			if err := e.encode(v.Index(i)); err != nil {
				return fmt.Errorf("[%d]: %w", i, err)
			}
		}
		return nil
	case reflect.Map:
		return e.encodeMap(v)
	}
	return e.encodeStruct(v) // no other kind can contain a tensor
}

// encodeMap encodes the pairs in the order of their encoded keys.
func (e *encoder) encodeMap(v reflect.Value) error {
	type pair struct {
		key   []byte
		value reflect.Value
	}
	pairs := make([]pair, 0, v.Len())
	for it := v.MapRange(); it.Next(); {
		key, err := appendLeaf(nil, it.Key(), e.depth)
		if err != nil {
			return fmt.Errorf("key %s: %w", status.Shown(fmt.Sprint(it.Key())), err)
		}
		pairs = append(pairs, pair{key, it.Value()})
	}
	slices.SortFunc(pairs, func(a, b pair) int { return bytes.Compare(a.key, b.key) })
	e.Value = message.AppendHead(e.Value, message.MajorMap, len(pairs))
	for _, p := range pairs {
		e.Value = append(e.Value, p.key...)
		if err := e.encode(p.value); err != nil {
			return fmt.Errorf("[%s]: %w", shownValue(p.key), err)
		}
	}
	return nil
}

func (e *encoder) encodeStruct(v reflect.Value) error {
	l := layoutOf(v.Type())
	if l.list {
		e.Value = message.AppendHead(e.Value, message.MajorArray, len(l.fields))
		for i := range l.fields {
			if err := e.encodeField(&l.fields[i], v); err != nil {
				return err
			}
		}
		return nil
	}
	n := 0
	for i := range l.fields {
		if l.fields[i].present(v) {
			n++
		}
	}
	e.Value = message.AppendHead(e.Value, message.MajorMap, n)
	for _, i := range l.order {
		if f := &l.fields[i]; f.present(v) {
			e.Value = append(e.Value, f.key...)
			if err := e.encodeField(f, v); err != nil {
				return err
			}
		}
	}
	return nil
}

// present reports whether the encoding of v contains the field.
func (f *field) present(v reflect.Value) bool {
	value := f.get(v)
	return value.IsValid() && !(f.omitEmpty && isEmpty(value))
}

func (e *encoder) encodeField(f *field, v reflect.Value) error {
	value := f.get(v)
	if !value.IsValid() { // behind a nil pointer, in a list
		e.Value = append(e.Value, Nothing...)
		return nil
	}
	if err := e.encode(value); err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	return nil
}

// isEmpty reports whether the cbor library omits v under omitempty.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Map, reflect.Slice, reflect.String, reflect.Array:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

// handle returns the index of a storage in the payload and adds it if needed. Read-only views of a storage share its
// index.
func (e *encoder) handle(s *tensor.Storage) uint32 {
	s = s.Origin()
	if i, ok := e.index[s]; ok {
		return i
	}
	if e.index == nil {
		e.index = map[*tensor.Storage]uint32{}
	}
	i := uint32(len(e.Storages))
	e.index[s] = i
	e.Storages = append(e.Storages, s.Retain())
	return i
}

func (e *encoder) encodeTensor(t *tensor.Tensor) error {
	if t.Closed() {
		return status.Closed(fmt.Sprintf("tensor %v%v", t.DType(), t.Shape()))
	}
	spec := t.Spec()
	return e.tagged(message.TagTensor, message.TensorRef{
		Handle: e.handle(t.Storage()), DType: uint8(spec.DType), ByteOffset: spec.ByteOffset, Shape: spec.Shape, Strides: spec.Strides,
	})
}

// tagged appends a reference to tensors.
func (e *encoder) tagged(tag uint64, ref any) error {
	raw, err := message.MarshalTagged(tag, ref)
	e.Value = append(e.Value, raw...)
	return err
}

func (e *encoder) encodeStateDict(sd *module.StateDict) error {
	manifest, storages := sd.Manifest()
	for _, t := range sd.All() {
		if t.Closed() {
			return status.Closed("the state dict")
		}
	}
	encoded, err := EncodeManifest(manifest)
	if err != nil {
		return err
	}
	ref := message.StateDictRef{Manifest: *encoded}
	for _, s := range storages {
		ref.Handles = append(ref.Handles, e.handle(s))
	}
	return e.tagged(message.TagStateDict, ref)
}

// Devices returns the devices of the storages, each once.
func (p *Payload) Devices() []message.DeviceInfo {
	var list []message.DeviceInfo
	seen := map[driver.UUID]bool{}
	for _, s := range p.Storages {
		info := s.Memory().Device().Info()
		if !seen[info.UUID] {
			seen[info.UUID] = true
			list = append(list, EncodeDevice(info))
		}
	}
	return list
}

// NoFields is the encoding of a struct without fields. Nothing is the encoding of null.
var NoFields, Nothing = message.RawMessage{0xa0}, message.RawMessage{0xf6}

// CheckForwarded validates a payload that is forwarded to another process, which would refuse an invalid one: the
// encoding, and each tensor and state dict against the storages. It borrows the storages and trusts nothing in the
// payload.
func CheckForwarded(value message.RawMessage, storages []*tensor.Storage) error {
	if err := message.ValidatePayload(value); err != nil {
		return err
	}
	if _, err := checkItem(value); err != nil {
		return err
	}
	d := &decoder{storages: storages}
	defer func() { CloseAll(d.made) }()
	return message.EachRef(value, func(tag uint64, item message.RawMessage) error {
		if tag == message.TagTensor {
			_, err := d.decodeTensor(item)
			return err
		}
		_, err := d.decodeStateDict(item)
		return err
	})
}

// checkItem refuses texts that are not UTF-8 and duplicate keys in the first item of validated data, at any depth, and
// returns the rest.
func checkItem(data []byte) (rest []byte, err error) {
	major, n, rest, ok := message.Head(data)
	if !ok {
		return nil, errTruncated
	}
	switch major {
	case message.MajorText:
		if !utf8.Valid(rest[:n]) {
			return nil, unfit("the text %s is not UTF-8", status.Shown(string(rest[:min(n, maxShown)])))
		}
		return rest[n:], nil
	case message.MajorBytes:
		return rest[n:], nil
	case message.MajorTag:
		n = 1
	case message.MajorArray:
	case message.MajorMap:
		var seen map[string]bool
		if n > 1 {
			seen = make(map[string]bool, min(n, uint64(len(rest))))
		}
		for range n {
			key, value, ok := message.Cut(rest)
			if !ok {
				return nil, errTruncated
			}
			if _, err := checkItem(key); err != nil {
				return nil, err
			}
			if n > 1 {
				if key = canonical(key); seen[string(key)] {
					return nil, unfit("the key %s occurs twice", shownValue(key))
				}
				seen[string(key)] = true
			}
			if rest, err = checkItem(value); err != nil {
				return nil, err
			}
		}
		return rest, nil
	default:
		return rest, nil
	}
	for range n {
		if rest, err = checkItem(rest); err != nil {
			return nil, err
		}
	}
	return rest, nil
}

// canonical returns a key with the shortest head, so that equal keys have equal bytes.
func canonical(key message.RawMessage) message.RawMessage {
	major, n, rest, _ := message.Head(key)
	if major > message.MajorText {
		return key
	}
	return append(message.AppendHead(nil, major, int(n)), rest...)
}
