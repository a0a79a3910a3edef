package codec

import (
	"bytes"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

func hostDevice(t testing.TB) driver.Device {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	t.Cleanup(func() { dev.Close() })
	return dev
}

func vector(t testing.TB, dev driver.Device, values ...float32) *tensor.Tensor {
	t.Helper()
	x, err := tensor.FromSlice(dev, tensor.Shape{int64(len(values))}, values)
	require.NoError(t, err)
	t.Cleanup(func() { x.Close() })
	return x
}

type (
	inner struct {
		T *tensor.Tensor `json:"t,omitempty"`
		N int
	}
	Outer struct {
		Name string `cbor:"name"`
		Deep *inner
	}
	embedding struct {
		inner
		*Outer
		Named  inner `json:"named"`
		Hidden int   `json:"-"`
		secret int
	}
	tree struct {
		Value *tensor.Tensor    `json:"value,omitempty"`
		Kids  []*tree           `json:"kids,omitempty"`
		ByID  map[int64]*tree   `json:"by_id,omitempty"`
		Pair  [2]*tensor.Tensor `cbor:",omitempty"`
		Any   any               `json:"any,omitempty"`
		SD    *module.StateDict `cbor:",omitempty"`
		At    time.Time         `cbor:",omitempty"`
		Raw   []byte            `cbor:",omitempty"`
	}
	plainKinds struct {
		B   bool
		I8  int8
		I   int64
		U   uint64
		F   float64
		F32 float32
		S   string
		By  []byte
		L   []string
		M   map[string]int
		MI  map[int]string
		P   *int
		A   [3]uint16
		T   time.Time
		D   time.Duration
		X   any
	}
)

// crossed encodes a value and decodes it into another, with the same storages.
func crossed(t *testing.T, in, out any) {
	t.Helper()
	p, err := EncodePayload(in)
	require.NoError(t, err)
	defer p.Close()
	_, err = DecodePayload(p.Value, p.Storages, out, true)
	require.NoError(t, err)
	again, err := EncodePayload(reflect.ValueOf(out).Elem().Interface())
	require.NoError(t, err)
	defer again.Close()
	require.Equal(t, p.Value, again.Value, "what was decoded encodes to the same bytes")
}

func TestPlainValues(t *testing.T) {
	t.Parallel()
	five := 5
	in := plainKinds{
		B: true, I8: -128, I: math.MinInt64, U: math.MaxUint64, F: math.Pi, F32: 1.5, S: "grün", By: []byte{0, 255}, L: []string{"a", ""},
		M: map[string]int{"x": 1}, MI: map[int]string{-1: "minus"}, P: &five, A: [3]uint16{1, 2, 3},
		T: time.Date(2030, 1, 2, 3, 4, 5, 678_901_234, time.UTC), D: time.Hour, X: map[string]any{"k": []any{int64(-1), "s", true, nil, 2.5}},
	}
	var out plainKinds
	p, err := EncodePayload(in)
	require.NoError(t, err)
	require.Empty(t, p.Storages)
	_, err = DecodePayload(p.Value, nil, &out, false)
	require.NoError(t, err)
	require.True(t, in.T.Equal(out.T), "with its fraction of a second")
	in.T, out.T = time.Time{}, time.Time{}
	require.Equal(t, in, out)
	for _, v := range []any{nil, 7, "text", []byte{1}, true, []int{1, 2}, map[string]string{"a": "b"}} {
		p, err := EncodePayload(v)
		require.NoError(t, err)
		var back any
		_, err = DecodePayload(p.Value, nil, &back, true)
		require.NoError(t, err, "%T", v)
	}
}

func TestTensorsAtAnyDepth(t *testing.T) {
	drivertest.Leaks(t)
	dev := hostDevice(t)
	x, y := vector(t, dev, 1, 2, 3), vector(t, dev, 4)
	view, err := x.Narrow(0, 1, 2)
	require.NoError(t, err)
	sd := module.NewStateDict()
	require.NoError(t, sd.Set("w", x.Alias()))
	defer sd.Close()
	in := tree{
		Value: x, Kids: []*tree{{Value: view}, nil}, ByID: map[int64]*tree{-3: {Value: y}}, Pair: [2]*tensor.Tensor{nil, y},
		Any: map[string]any{"list": []any{view, "s", map[string]any{"y": y}}}, SD: sd, At: time.Unix(5, 7).UTC(), Raw: []byte{9},
	}
	var out tree
	crossed(t, in, &out)
	require.Same(t, x.Storage(), out.Value.Storage())
	require.Equal(t, view.Spec(), out.Kids[0].Value.Spec())
	require.Nil(t, out.Kids[1])
	require.Nil(t, out.Pair[0])
	require.Same(t, y.Storage(), out.ByID[-3].Pair0().Storage())
	require.Equal(t, in.At, out.At)
	list := out.Any.(map[string]any)["list"].([]any)
	require.Same(t, x.Storage(), list[0].(*tensor.Tensor).Storage())
	w, ok := out.SD.Get("w")
	require.True(t, ok)
	require.Same(t, x.Storage(), w.Storage())
	CloseValue(out)
	require.True(t, out.Value.Closed())
	require.True(t, list[0].(*tensor.Tensor).Closed())
	require.False(t, x.Closed())
}

// Pair0 returns the value of a leaf.
func (n *tree) Pair0() *tensor.Tensor { return n.Value }

func TestEmbeddedStructsAreFlat(t *testing.T) {
	t.Parallel()
	dev := hostDevice(t)
	in := embedding{inner: inner{T: vector(t, dev, 1), N: 1}, Outer: &Outer{Name: "o", Deep: &inner{N: 2}}, Named: inner{N: 3}, Hidden: 4, secret: 5}
	p, err := EncodePayload(in)
	require.NoError(t, err)
	defer p.Close()
	var names map[string]message.RawMessage
	require.NoError(t, message.UnmarshalPayload(p.Value, &names))
	require.Len(t, names, 5)
	for _, name := range []string{"t", "N", "name", "Deep", "named"} {
		require.Contains(t, names, name)
	}
	var out embedding
	_, err = DecodePayload(p.Value, p.Storages, &out, true)
	require.NoError(t, err)
	defer CloseValue(out)
	require.Equal(t, []any{1, "o", 2, 3, 0}, []any{out.N, out.Name, out.Deep.N, out.Named.N, out.Hidden})
	require.Nil(t, out.Named.T, "an empty field that may be left out is")

	in.Outer = nil
	p2, err := EncodePayload(in)
	require.NoError(t, err)
	defer p2.Close()
	var none embedding
	_, err = DecodePayload(p2.Value, p2.Storages, &none, true)
	require.NoError(t, err)
	defer CloseValue(none)
	require.Nil(t, none.Outer)
}

func TestEncodeRefuses(t *testing.T) {
	drivertest.Leaks(t)
	dev := hostDevice(t)
	closed, err := tensor.FromSlice(dev, tensor.Shape{1}, []float32{1})
	require.NoError(t, err)
	closed.Close()
	self := map[string]any{"x": vector(t, dev, 1)}
	self["self"] = self
	var loop any
	loop = &loop
	deep := any(vector(t, dev, 1))
	for range 80 {
		deep = []any{deep}
	}
	ring := &tree{Value: vector(t, dev, 2)}
	ring.Kids = []*tree{ring, ring}
	for name, v := range map[string]any{
		"channel": make(chan int), "function": map[string]any{"f": func() {}}, "closed tensor": closed, "list": []*tensor.Tensor{closed},
		"in itself": self, "pointer to itself": loop, "too deep": deep, "ring": ring, "by value": tensor.Tensor{},
		"inside by value": struct{ T tensor.Tensor }{}, "state dict by value": []module.StateDict{{}},
	} {
		_, err := EncodePayload(v)
		require.Error(t, err, name)
		CloseValue(v) // must end, and close what the value contains
	}
	require.True(t, ring.Value.Closed())
}

func TestCheckTypeRefuses(t *testing.T) {
	t.Parallel()
	for name, typ := range map[string]reflect.Type{
		"channel": reflect.TypeFor[struct{ A []map[string]chan int }](), "function": reflect.TypeFor[func()](),
		"tensor": reflect.TypeFor[[]tensor.Tensor](), "state dict": reflect.TypeFor[map[string]module.StateDict](),
		"interface": reflect.TypeFor[struct{ E error }](), "key": reflect.TypeFor[map[chan int]string](),
		"pointer": reflect.TypeFor[uintptr](),
	} {
		require.ErrorIs(t, CheckType(typ), status.ErrInvalid, name)
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[tree](), reflect.TypeFor[any](), reflect.TypeFor[plainKinds](), reflect.TypeFor[struct{}]()} {
		require.NoError(t, CheckType(typ), typ.String())
	}
	require.False(t, MayHoldTensors(reflect.TypeFor[time.Time]()))
	require.False(t, MayHoldTensors(reflect.TypeFor[struct{ P *plainNode }]()))
	require.True(t, MayHoldTensors(reflect.TypeFor[tree]()))
}

// TestDecodeRefusesWhatCannotBeEncoded covers items that no program sends: a value decoded from them could not be sent on.
func TestDecodeRefusesWhatCannotBeEncoded(t *testing.T) {
	for name, raw := range map[string][]byte{
		"simple value 0":     {0xe0},
		"simple value 19":    {0xf3},
		"simple value 255":   {0xf8, 0xff},
		"integer below":      {0x3b, 0x80, 0, 0, 0, 0, 0, 0, 0},
		"smallest of 65 bit": {0x3b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
	} {
		t.Run(name, func(t *testing.T) {
			pair := func(head ...byte) []byte { return append(head, raw...) }
			for _, item := range [][]byte{raw, pair(0x81), pair(0xa1, 0x61, 'a'), append(pair(0xa1), 0x01)} {
				for _, out := range []any{new(any), new([]any), new(map[string]any), new(map[any]any)} {
					_, err := DecodePayload(item, nil, out, false)
					assert.Error(t, err, "%x into %T", item, out)
				}
			}
		})
	}
	var smallest any
	_, err := DecodePayload([]byte{0x3b, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, nil, &smallest, false)
	require.NoError(t, err)
	assert.Equal(t, int64(math.MinInt64), smallest)
}

type plainNode struct{ Next *plainNode }

func TestDecodeInvalidPayload(t *testing.T) {
	drivertest.Leaks(t)
	dev := hostDevice(t)
	x := vector(t, dev, 1, 2, 3, 4)
	storages := []*tensor.Storage{x.Storage()}
	tagged := func(tag uint64, v any) message.RawMessage {
		raw, err := message.MarshalTagged(tag, v)
		require.NoError(t, err)
		return raw
	}
	ref := func(change func(*message.TensorRef)) message.RawMessage {
		r := message.TensorRef{DType: uint8(tensor.Float32), Shape: []int64{4}}
		change(&r)
		return tagged(message.TagTensor, r)
	}
	good := ref(func(*message.TensorRef) {})
	list := func(parts ...message.RawMessage) message.RawMessage {
		raw, err := message.MarshalPayload(parts)
		require.NoError(t, err)
		return raw
	}
	for name, raw := range map[string]message.RawMessage{
		"no such storage": ref(func(r *message.TensorRef) { r.Handle = 1 }),
		"beyond":          ref(func(r *message.TensorRef) { r.Shape = []int64{1 << 20} }),
		"overflow":        ref(func(r *message.TensorRef) { r.Shape = []int64{1 << 62, 1 << 62} }),
		"negative":        ref(func(r *message.TensorRef) { r.Shape = []int64{-4} }),
		"before":          ref(func(r *message.TensorRef) { r.ByteOffset = -4 }),
		"strides":         ref(func(r *message.TensorRef) { r.Strides = []int64{1 << 60} }),
		"ranks":           ref(func(r *message.TensorRef) { r.Strides = []int64{1, 1} }),
		"type":            ref(func(r *message.TensorRef) { r.DType = 200 }),
		"other tag":       tagged(message.TagStateDict, message.TensorRef{}),
		"unknown tag":     tagged(4711, 1),
		"a number":        {0x05},
		"nothing":         {},
		"cut off":         good[:len(good)-1],
		"more":            append(bytes.Clone(good), 0x00),
	} {
		var one *tensor.Tensor
		_, err := DecodePayload(raw, storages, &one, false)
		require.Error(t, err, name)
		require.Nil(t, one, name)
		if len(raw) == 0 || name == "more" || name == "cut off" {
			continue
		}
		// The valid one must not leak.
		many := []*tensor.Tensor{nil}
		_, err = DecodePayload(list(good, raw), storages, &many, false)
		require.Error(t, err, name)
		require.Nil(t, many, name)
	}
	require.EqualValues(t, 1, x.Storage().Refs(), "nothing stayed behind")
}

// Any bytes give an error or a value that can be encoded again, and nothing remains after it is closed.
func FuzzDecodePayload(f *testing.F) {
	dev, err := host.Open()
	if err != nil {
		f.Skip(err)
	}
	defer dev.Close()
	x, err := tensor.FromSlice(dev, tensor.Shape{4}, []float32{1, 2, 3, 4})
	if err != nil {
		f.Fatal(err)
	}
	defer x.Close()
	sd := module.NewStateDict()
	sd.Set("x", x.Alias())
	defer sd.Close()
	for _, v := range []any{
		nil, 1, "a", x, []any{x, nil, map[string]any{"x": x}}, tree{Value: x, SD: sd, Any: []any{sd}}, map[int64]*tensor.Tensor{4: x},
		embedding{inner: inner{T: x}},
	} {
		p, err := EncodePayload(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(p.Value))
		p.Close()
	}
	f.Add([]byte{})
	storages := []*tensor.Storage{x.Storage()}
	before := x.Storage().Refs()
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, out := range []any{new(any), new(tree), new(embedding), new(map[int64]*tensor.Tensor), new([]*module.StateDict), new(plainKinds)} {
			for _, strict := range []bool{false, true} {
				made, err := DecodePayload(raw, storages, out, strict)
				if err == nil {
					p, err := EncodePayload(reflect.ValueOf(out).Elem().Interface())
					if err != nil {
						t.Fatalf("%T: what was decoded does not encode: %v", out, err)
					}
					p.Close()
				}
				CloseAll(made)
			}
		}
		if refs := x.Storage().Refs(); refs != before {
			t.Fatalf("%d references, not %d", refs, before)
		}
	})
}
