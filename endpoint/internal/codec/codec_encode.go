package codec

import (
	"errors"
	"fmt"
	"reflect"

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

// encoder encodes one value.
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
	if !MayHoldTensors(reflect.TypeOf(v)) {
		raw, err := AppendPlain(nil, v)
		return Payload{Value: raw}, err
	}
	var e encoder
	encoded := false
	defer func() { // releases the references also if a marshaler panics
		if !encoded {
			e.Close()
		}
	}()
	raw, err := e.encode(reflect.ValueOf(v))
	if err == nil && (len(raw) > checkedBytes || e.deepest > checkedDepth) {
		err = message.CheckPayload(raw)
	}
	if err == nil {
		err = synchronize(e.Storages)
	}
	if err != nil {
		return Payload{}, err
	}
	e.Value, encoded = raw, true
	return e.Payload, nil
}

// AppendPlain appends the encoding of a value that holds no tensors.
func AppendPlain(b []byte, v any) ([]byte, error) {
	if err := checkNesting(reflect.ValueOf(v), 0); err != nil {
		return b, err
	}
	at := len(b)
	b, err := message.AppendMarshal(b, v)
	if err == nil && len(b)-at > checkedBytes {
		err = message.CheckPayload(b[at:])
	}
	return b, err
}

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

func (e *encoder) encode(v reflect.Value) (message.RawMessage, error) {
	t := v.Type()
	if !MayHoldTensors(t) {
		if err := checkNesting(v, e.depth); err != nil {
			return nil, err
		}
		return message.Marshal(v.Interface())
	}
	e.depth++
	defer func() { e.depth-- }()
	e.deepest = max(e.deepest, e.depth)
	if e.depth > maxDepth { // a cyclic value would never end
		return nil, errTooDeep
	}
	switch {
	case byValue(t):
		return nil, errNotPointer(t.String())
	case (t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface || t.Kind() == reflect.Map || t.Kind() == reflect.Slice) && v.IsNil():
		return message.RawMessage{0xf6}, nil
	case t == tensorType:
		return e.encodeTensor(v.Interface().(*tensor.Tensor))
	case t == stateDictType:
		return e.encodeStateDict(v.Interface().(*module.StateDict))
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface:
		return e.encode(v.Elem())
	case reflect.Slice, reflect.Array:
		list := make([]message.RawMessage, v.Len())
		for i := range list {
			raw, err := e.encode(v.Index(i))
			if err != nil {
				return nil, fmt.Errorf("[%d]: %w", i, err)
			}
			list[i] = raw
		}
		return message.MarshalPayload(list)
	case reflect.Map:
		return e.encodeMap(v)
	}
	return e.encodeStruct(v) // no other kind can contain a tensor
}

func (e *encoder) encodeMap(v reflect.Value) (message.RawMessage, error) {
	out := reflect.MakeMapWithSize(reflect.MapOf(v.Type().Key(), reflect.TypeFor[message.RawMessage]()), v.Len())
	for it := v.MapRange(); it.Next(); {
		raw, err := e.encode(it.Value())
		if err != nil {
			return nil, fmt.Errorf("[%v]: %w", it.Key(), err)
		}
		out.SetMapIndex(it.Key(), reflect.ValueOf(raw))
	}
	return message.MarshalPayload(out.Interface())
}

func (e *encoder) encodeStruct(v reflect.Value) (message.RawMessage, error) {
	out := map[string]message.RawMessage{}
	for _, f := range fieldsOf(v.Type()) {
		fv := f.get(v)
		if !fv.IsValid() || f.omitEmpty && isEmpty(fv) {
			continue
		}
		raw, err := e.encode(fv)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		out[f.name] = raw
	}
	return message.MarshalPayload(out)
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

func (e *encoder) encodeTensor(t *tensor.Tensor) (message.RawMessage, error) {
	if t.Closed() {
		return nil, status.Closed(fmt.Sprintf("tensor %v%v", t.DType(), t.Shape()))
	}
	spec := t.Spec()
	return message.MarshalTagged(message.TagTensor, message.TensorRef{
		Handle: e.handle(t.Storage()), DType: uint8(spec.DType), ByteOffset: spec.ByteOffset, Shape: spec.Shape, Strides: spec.Strides,
	})
}

func (e *encoder) encodeStateDict(sd *module.StateDict) (message.RawMessage, error) {
	manifest, storages := sd.Manifest()
	for _, t := range sd.All() {
		if t.Closed() {
			return nil, status.Closed("the state dict")
		}
	}
	encoded, err := EncodeManifest(manifest)
	if err != nil {
		return nil, err
	}
	ref := message.StateDictRef{Manifest: *encoded}
	for _, s := range storages {
		ref.Handles = append(ref.Handles, e.handle(s))
	}
	return message.MarshalTagged(message.TagStateDict, ref)
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
	var all any // finds duplicate keys and invalid text at any depth
	if err := message.UnmarshalPayload(value, &all); err != nil {
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
