package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/tensor"
)

type (
	plainFields struct {
		A int
		B string
	}
	tagged struct {
		A int            `json:"a,omitempty"`
		B []byte         `cbor:"b"`
		C string         `json:"-"`
		D map[string]any `json:"d,omitempty"`
	}
	asList struct {
		_    struct{} `cbor:",toarray"`
		A    int
		B    string
		Last []int
	}
	embedding struct {
		plainFields
		C bool
	}
	tree struct {
		Value    int
		Children []tree
		Next     *tree
	}
	deepTypes struct {
		M map[string][]map[string]*plainFields
		A [2][2]float32
		P **int `json:"-"`
	}
	uuid      [16]byte
	word      string
	level     int8
	samples   []float32
	table     map[string]int
	ownText   struct{ text string }
	ownBinary struct{ a, b int }
	hidden    struct{ a, b int }
)

func (o ownText) MarshalCBOR() ([]byte, error) {
	return append([]byte{0x60 | byte(len(o.text))}, o.text...), nil
}

func (o *ownText) UnmarshalCBOR(data []byte) error { o.text = string(data[1:]); return nil }

func (o ownBinary) MarshalBinary() ([]byte, error) { return []byte{byte(o.a), byte(o.b)}, nil }

func (o *ownBinary) UnmarshalBinary(data []byte) error {
	o.a, o.b = int(data[0]), int(data[1])
	return nil
}

// carriedRow is a type with two different values.
type carriedRow struct {
	name     string
	register func(r *endpoint.Registry) error
	check    func(t *testing.T, c *endpoint.Client) // calls the functions that register added
	untyped  bool                                   // values arrive in an any too
}

// valueRow returns the row of T: functions that return their argument as a result, as items of a stream, from an any, and
// from the cache.
func valueRow[T any](a, b T, untyped bool) carriedRow {
	name := reflect.TypeFor[T]().String()
	return carriedRow{
		name: name, untyped: untyped,
		register: func(r *endpoint.Registry) error {
			if err := endpoint.Register(r, "result "+name, func(_ context.Context, in T) (T, error) { return in, nil }); err != nil {
				return err
			}
			if err := endpoint.Register(r, "cached "+name, func(_ context.Context, in T) (T, error) { return in, nil }, endpoint.Cached()); err != nil {
				return err
			}
			return endpoint.RegisterStream(r, "stream "+name, func(_ context.Context, in T) iter.Seq2[T, error] {
				return func(yield func(T, error) bool) {
					for range 2 {
						if !yield(in, nil) {
							return
						}
					}
				}
			})
		},
		check: func(t *testing.T, c *endpoint.Client) {
			require.False(t, sameValue(reflect.ValueOf(&a).Elem(), reflect.ValueOf(&b).Elem()), "the row needs two values")
			for _, want := range []T{a, b, a} {
				got, err := endpoint.Call[T](t.Context(), c, "result "+name, want)
				require.NoError(t, err)
				requireSame(t, want, got, "result")
				got, err = endpoint.Call[T](t.Context(), c, "cached "+name, want)
				require.NoError(t, err)
				requireSame(t, want, got, "cached result")
				items := 0
				for got, err := range endpoint.Stream[T](t.Context(), c, "stream "+name, want) {
					require.NoError(t, err)
					requireSame(t, want, got, "item")
					items++
				}
				require.Equal(t, 2, items)
				for _, function := range []string{"any", "cached any"} {
					var out struct{ V T }
					err = c.Call(t.Context(), function, struct{ V any }{want}, &out)
					if !untyped {
						require.ErrorIs(t, err, endpoint.ErrCapability)
						continue
					}
					require.NoError(t, err, function)
					requireSame(t, want, out.V, function)
				}
			}
		},
	}
}

// refusedRow returns the row of a type that cannot be carried.
func refusedRow[T any](a, b T) carriedRow {
	name := reflect.TypeFor[T]().String()
	return carriedRow{name: name, check: func(t *testing.T, c *endpoint.Client) {
		var r endpoint.Registry
		type in = struct{ V T }
		type out = struct{ V []T }
		require.ErrorIs(t, endpoint.Register(&r, "argument", func(context.Context, in) (int, error) { return 0, nil }), endpoint.ErrConfiguration)
		require.ErrorIs(t, endpoint.Register(&r, "result", func(context.Context, int) (out, error) { return out{}, nil }), endpoint.ErrConfiguration)
		require.ErrorIs(t, endpoint.RegisterStream(&r, "item", func(context.Context, int) iter.Seq2[map[string]T, error] { return nil }), endpoint.ErrConfiguration)
		require.Zero(t, r.Len())
		_, err := endpoint.Call[struct{ V T }](t.Context(), c, "any", struct{ V any }{1})
		require.ErrorIs(t, err, endpoint.ErrCapability)
		for _, err := range endpoint.Stream[struct{ V T }](t.Context(), c, "stream int", 1) {
			require.ErrorIs(t, err, endpoint.ErrCapability)
		}
		for _, v := range []T{a, b} {
			for _, function := range []string{"any", "cached any"} {
				require.ErrorIs(t, c.Call(t.Context(), function, struct{ V any }{v}, nil), endpoint.ErrCapability)
				require.ErrorIs(t, c.Call(t.Context(), function, struct{ V any }{[]any{map[string]any{"x": v}}}, nil), endpoint.ErrCapability)
			}
		}
	}}
}

// within returns the rows of T and of types that contain it. untyped reports whether T can be in an any.
func within[T any](a, b T, untyped bool) []carriedRow {
	return []carriedRow{
		valueRow(a, b, untyped), valueRow(&a, &b, untyped), valueRow([]T{a, b}, []T{b}, untyped), valueRow([2]T{a, b}, [2]T{b, a}, untyped),
		valueRow(map[string]T{"x": a}, map[string]T{"x": b}, untyped), valueRow(struct{ V T }{a}, struct{ V T }{b}, untyped),
	}
}

func carriedRows() (rows []carriedRow) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 678_901_234, time.FixedZone("x", 3600))
	one, three := 1, 3
	for _, list := range [][]carriedRow{
		within(true, false, true), within(-1, math.MinInt, true), within(int8(-128), 127, true), within(int16(-2), 3, true), within(int32(-2), 3, true),
		within(int64(math.MaxInt64), math.MinInt64, true), within(uint(1), math.MaxUint, true), within(uint16(1), 2, true),
		within(uint32(1), 2, true), within(uint64(math.MaxUint64), 1, true), within(float32(1)/3, float32(2)/3, true), within(1.0/3, 2.0/3, true),
		within("ü", "", true), within([]byte{1, 2}, []byte{}, true), within(at, at.Add(1), true), within(time.Hour, time.Second, true),
		within(word("a"), "b", true), within(level(-1), 2, true), within(samples{1, 2}, samples{}, true), within(table{"a": 1}, table{"a": 2}, true),
		within(uuid{1}, uuid{2}, true), within(plainFields{1, "a"}, plainFields{1, "b"}, true), within(asList{A: 1, B: "x"}, asList{A: 1, Last: []int{1}}, true),
		within(embedding{plainFields{1, "a"}, true}, embedding{plainFields{1, "a"}, false}, true), within(ownText{"a"}, ownText{"b"}, true),
		within(ownBinary{1, 2}, ownBinary{1, 3}, true), within(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::1"), true),
		within(tree{1, []tree{{2, nil, nil}}, &tree{Value: 3}}, tree{Value: 1}, true), within(map[int]string{1: "a"}, map[int]string{2: "a"}, false),
		within(map[uuid]int{{1}: 1}, map[uuid]int{{2}: 1}, false), within(map[word][]int{"a": {1}}, map[word][]int{"a": {2}}, true),
	} {
		rows = append(rows, list...)
	}
	link, _ := url.Parse("https://user@example.com/a?b=c#d")
	other, _ := url.Parse("https://example.com")
	third, twoThirds := big.NewRat(1, 3), big.NewRat(2, 3)
	return append(rows,
		valueRow(tagged{A: 1, B: []byte{1}}, tagged{D: map[string]any{"x": []any{"y", true}}}, true),
		valueRow(deepTypes{M: map[string][]map[string]*plainFields{"a": {{"b": {1, "x"}}}}}, deepTypes{A: [2][2]float32{{1, 2}, {3, 4}}}, true),
		valueRow(struct{ P, Q *int }{&one, nil}, struct{ P, Q *int }{nil, &three}, true), valueRow([]*int{&one, nil}, []*int{nil, &one}, true),
		valueRow(map[bool]int{true: 1}, map[bool]int{false: 1}, false), valueRow(map[float64]int{1.5: 1}, map[float64]int{2.5: 1}, false),
		valueRow(map[uint8]string{1: "a"}, map[uint8]string{2: "a"}, false), valueRow(map[int64][]byte{-1: {1}}, map[int64][]byte{1: {1}}, false),
		valueRow([]any{"a", true}, []any{"a", nil}, true), valueRow(map[string]any{"a": "b"}, map[string]any{"a": nil}, true),
		valueRow(json.RawMessage(`{"a":1}`), json.RawMessage(`2`), true), valueRow(json.Number("1.5"), json.Number("1.25"), true),
		valueRow(net.IP{1, 2, 3, 4}, net.IP{1, 2, 3, 5}, true), valueRow(net.IPMask{255, 0, 0, 0}, net.IPMask{0}, true),
		valueRow(netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/9"), true),
		valueRow(netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.1:81"), true), valueRow(*link, *other, true),
		valueRow(url.Values{"a": {"b"}}, url.Values{"a": {"c"}}, true), valueRow(time.March, time.May, true), valueRow(reflect.Int, reflect.Bool, true),
		// Types without exported content, and values that belong to one process.
		refusedRow(*third, *twoThirds), refusedRow(third, twoThirds), refusedRow(*big.NewFloat(1.5), *big.NewFloat(2.5)), refusedRow(big.NewInt(1), big.NewInt(2)),
		refusedRow(*new(big.Int).Lsh(big.NewInt(1), 100), *big.NewInt(1)), refusedRow(hidden{1, 2}, hidden{1, 3}), refusedRow([]hidden{{1, 2}}, nil),
		refusedRow(map[string]hidden{"a": {1, 2}}, nil), refusedRow(bytes.NewBufferString("a"), bytes.NewBufferString("b")),
		refusedRow(&strings.Builder{}, nil), refusedRow(&atomic.Int64{}, nil), refusedRow(&sync.Mutex{}, nil), refusedRow(regexp.MustCompile("a"), nil),
		refusedRow(make(chan int), nil), refusedRow(func() {}, nil), refusedRow(uintptr(1), 2), refusedRow(complex64(1), 2), refusedRow(complex(1, 2), 3),
		refusedRow(map[any]int{"a": 1}, nil), refusedRow(map[plainFields]int{{1, "a"}: 1}, nil), refusedRow(map[complex64]int{1: 1}, nil),
		refusedRow(struct {
			time.Time
			Note string
		}{at, "x"}, struct {
			time.Time
			Note string
		}{}),
		refusedRow(struct {
			A int `json:"x"`
			B int `cbor:"x"`
		}{1, 2}, struct {
			A int `json:"x"`
			B int `cbor:"x"`
		}{}),
		refusedRow(struct {
			A int `cbor:"1,keyasint"`
		}{1}, struct {
			A int `cbor:"1,keyasint"`
		}{2}),
		refusedRow(time.UTC, time.Local), refusedRow(struct{ E error }{os.ErrClosed}, struct{ E error }{}), refusedRow([]error{os.ErrClosed}, nil),
	)
}

// sameValue compares values by what they contain: times by their instants, and a nil slice or map as an empty one.
func sameValue(a, b reflect.Value) bool {
	if a.Type() != b.Type() {
		return false
	}
	if x, ok := a.Interface().(time.Time); ok {
		return x.Equal(b.Interface().(time.Time))
	}
	switch a.Kind() {
	case reflect.Pointer, reflect.Interface:
		return a.IsNil() == b.IsNil() && (a.IsNil() || sameValue(a.Elem(), b.Elem()))
	case reflect.Slice, reflect.Array:
		for i := range min(a.Len(), b.Len()) {
			if !sameValue(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return a.Len() == b.Len()
	case reflect.Map:
		for it := a.MapRange(); it.Next(); {
			if v := b.MapIndex(it.Key()); !v.IsValid() || !sameValue(it.Value(), v) {
				return false
			}
		}
		return a.Len() == b.Len()
	case reflect.Struct:
		for i := range a.NumField() {
			if f := a.Type().Field(i); !f.IsExported() && f.Name != "_" {
				return reflect.DeepEqual(a.Interface(), b.Interface())
			}
		}
		for i := range a.NumField() {
			if a.Type().Field(i).IsExported() && !sameValue(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	}
	return a.Interface() == b.Interface()
}

func requireSame[T any](t *testing.T, want, got T, what string) {
	t.Helper()
	require.True(t, sameValue(reflect.ValueOf(&want).Elem(), reflect.ValueOf(&got).Elem()), "%s: sent %#v, received %#v", what, want, got)
}

// typesOwner is an owner in another process with an endpoint for each type.
type typesOwner struct{ server *endpoint.Server }

var typesRole = proctest.NewRole("owner of types", nil, func() (*typesOwner, error) { return new(typesOwner), nil })

// serveTypes serves at a socket until the process ends.
var serveTypes = proctest.NewOp(typesRole, "serve", func(o *typesOwner, socket string) (struct{}, error) {
	r := &endpoint.Registry{}
	type anything struct{ V any }
	returns := func(_ context.Context, in anything) (anything, error) { return in, nil }
	err := errors.Join(
		endpoint.Register(r, "any", returns),
		endpoint.Register(r, "cached any", returns, endpoint.Cached()),
		endpoint.Register(r, "lengths", func(_ context.Context, in nilIn) (string, error) { return in.nils(), nil }),
		endpoint.Register(r, "nils", func(context.Context, nilIn) (nilIn, error) { return nilIn{}, nil }))
	for _, row := range carriedRows() {
		if row.register != nil {
			err = errors.Join(err, row.register(r))
		}
	}
	dev, openErr := host.Open()
	if err = errors.Join(err, openErr); err != nil {
		return struct{}{}, err
	}
	o.server, err = endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}, Registry: r})
	if err == nil {
		go func() { _ = o.server.Serve(context.Background()) }() // the client fails if it ends
	}
	return struct{}{}, err
})

// clientOfTypes starts the owner of all types and returns a client of it.
func clientOfTypes(t *testing.T) *endpoint.Client {
	t.Helper()
	socket := proctest.SocketPath(t)
	serveTypes.Must(typesRole.Start(t), socket)
	ctx, cancel := context.WithTimeout(t.Context(), fixture.WaitLimit)
	defer cancel()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Wait: true, Devices: []driver.Device{fixture.Device(t)}})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// Each value of each type arrives as it is at an owner in another process and back, as an argument, a result, an item and
// in an any, or it is refused. A Cached function does not take two values for one.
func TestTypesArriveOrAreRefused(t *testing.T) {
	drivertest.Leaks(t)
	c := clientOfTypes(t)
	names := map[string]bool{}
	for _, row := range carriedRows() {
		require.False(t, names[row.name], "%s occurs twice", row.name)
		names[row.name] = true
		t.Run(row.name, func(t *testing.T) { row.check(t, c) })
	}
	require.GreaterOrEqual(t, len(names), 200)
}

// nilIn has a nil slice or map in each place.
type nilIn struct {
	Bytes   []byte
	Numbers []int
	Map     map[string]int
	Nested  [][]int
	Maps    []map[string]int
	Values  map[string][]string
	Tensors []*tensor.Tensor
	ByName  map[string]*tensor.Tensor
	Lists   [][]*tensor.Tensor
	Anys    []any
	Any     map[string]any
	Pointer *[]int
	Nothing any
}

func nilsInside() nilIn {
	return nilIn{Nested: [][]int{nil}, Maps: []map[string]int{nil}, Values: map[string][]string{"x": nil}, Lists: [][]*tensor.Tensor{nil}}
}

// nils describes which of the fields are nil.
func (n nilIn) nils() string {
	inside := func(v reflect.Value) string {
		for v.IsValid() && (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() > 0 {
			if v.Kind() == reflect.Map {
				v = v.MapIndex(v.MapKeys()[0])
			} else {
				v = v.Index(0)
			}
		}
		return fmt.Sprint(v.IsNil())
	}
	var list []string
	for i := range reflect.TypeFor[nilIn]().NumField() {
		list = append(list, reflect.TypeFor[nilIn]().Field(i).Name+" "+inside(reflect.ValueOf(n).Field(i)))
	}
	return strings.Join(list, ", ")
}

// A nil slice or map arrives empty, wherever it is. A nil pointer or any arrives as nil.
func TestNilSlicesArriveEmpty(t *testing.T) {
	drivertest.Leaks(t)
	c := clientOfTypes(t)
	const want = "Bytes false, Numbers false, Map false, Nested false, Maps false, Values false, Tensors false, ByName false, Lists false, Anys false, Any false, " +
		"Pointer true, Nothing true"
	for _, in := range []nilIn{{}, nilsInside()} {
		got, err := endpoint.Call[string](t.Context(), c, "lengths", in)
		require.NoError(t, err)
		require.Equal(t, want, got, "argument")
	}
	out, err := endpoint.Call[nilIn](t.Context(), c, "nils", nilIn{})
	require.NoError(t, err)
	require.Equal(t, want, out.nils(), "result")
	same, err := endpoint.Call[struct{ V []any }](t.Context(), c, "any", struct{ V any }{[]any{[]int(nil), []any(nil), map[string]any(nil), []string{}, nil}})
	require.NoError(t, err)
	require.Equal(t, []any{[]any{}, []any{}, map[string]any{}, []any{}, nil}, same.V)
}

// A value of any depth arrives, or its sender gets the reason.
func TestDepthArrivesOrIsRefused(t *testing.T) {
	drivertest.Leaks(t)
	c := clientOfTypes(t)
	most := 0
	for levels := range 80 {
		var v any = "x"
		for range levels {
			v = []any{v}
		}
		var out struct{ V any }
		err := c.Call(t.Context(), "any", struct{ V any }{v}, &out)
		if err != nil {
			require.ErrorContains(t, err, "nest", "%d levels", levels)
			require.NotErrorIs(t, err, endpoint.ErrProtocol)
			continue
		}
		require.Equal(t, v, out.V)
		most = levels
	}
	require.GreaterOrEqual(t, most, 60)
	_, err := c.Ping(t.Context())
	require.NoError(t, err)
}
