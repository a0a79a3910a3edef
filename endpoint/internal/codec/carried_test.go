package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

type (
	onlyUnexported struct{ a, b int }
	withTime       struct {
		time.Time
		Note string
	}
	asInt struct {
		A int `cbor:"1,keyasint"`
	}
	asArray struct {
		_    struct{} `cbor:",toarray"`
		A, B int
	}
	twice struct {
		A int `json:"x"`
		B int `cbor:"x"`
	}
	text         string
	numbers      []int32
	id           [16]byte
	embedded     struct{ onlyExported }
	withText     struct{ When time.Duration }
	pairs[T any] struct{ First, Second T }
)

type onlyExported struct{ A, B int }

func address[T any](v T) *T { return &v }

// Each value either arrives as it is, or its type is refused: when an endpoint is registered, and when it is sent in an any.
// No value arrives as another one.
func TestValuesArriveOrAreRefused(t *testing.T) {
	t.Parallel()
	link, err := url.Parse("https://user@example.com/a?b=c#d")
	require.NoError(t, err)
	at := time.Date(2030, 1, 2, 3, 4, 5, 678_901_234, time.UTC)
	carried, refused := 0, 0
	for _, v := range []any{
		true, int(-1), int8(-2), int16(-3), int32(-4), int64(-5), uint(1), uint8(2), uint16(3), uint32(4), uint64(1 << 63), float32(1.5), 2.5, "a", "ü",
		[]byte{1, 2}, []int{1}, []string{"a"}, []float32{1, 2}, []bool{true}, [3]int{1, 2, 3}, [2]string{"a", "b"}, [][]int{{1}, {2, 3}},
		map[string]int{"a": 1}, map[string]string{"a": "b"}, map[string][]int{"a": {1}}, map[int]string{1: "a"}, map[int64]bool{-1: true},
		map[uint8]int{1: 2}, map[bool]int{true: 1}, map[[16]byte]int{{1}: 2}, map[text]int{"a": 1}, map[float64]int{1.5: 1},
		map[string]map[string]int{"a": {"b": 1}}, text("named"), numbers{1, 2}, id{1, 2, 3}, time.Hour, at, onlyExported{1, 2}, &onlyExported{1, 2},
		[]onlyExported{{1, 2}}, map[string]onlyExported{"a": {1, 2}}, embedded{onlyExported{1, 2}}, withText{time.Second}, pairs[int]{1, 2},
		pairs[string]{"a", "b"}, pairs[[]byte]{[]byte{1}, []byte{2}}, struct{}{}, struct{ A any }{"x"}, []any{"a", true}, map[string]any{"a": "b"},
		address(1), address("a"), struct{ P *int }{address(1)}, struct{ P *int }{}, []*int{address(1), nil}, struct{ T time.Time }{at},
		struct{ T *time.Time }{&at}, []time.Time{at}, map[string]time.Time{"a": at}, asInt{7}, asArray{A: 1, B: 2}, json.RawMessage(`{"a":1}`),
		json.Number("1.5"), net.IP{1, 2, 3, 4}, net.IPMask{255, 0, 0, 0}, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddrPort("10.0.0.1:80"),
		netip.MustParsePrefix("10.0.0.0/8"), *link, link, url.Values{"a": {"b"}}, reflect.Int, time.March, time.Saturday,
		// Content that is not exported, and what cannot leave a process.
		onlyUnexported{1, 2}, &onlyUnexported{1, 2}, []onlyUnexported{{1, 2}}, map[string]onlyUnexported{"a": {1, 2}}, struct{ A onlyUnexported }{},
		struct{ A *onlyUnexported }{&onlyUnexported{1, 2}}, pairs[onlyUnexported]{}, withTime{at, "lost"}, twice{1, 2}, *big.NewRat(1, 3), big.NewRat(2, 3),
		*big.NewFloat(1.5), big.NewFloat(2.5), *new(big.Int).Lsh(big.NewInt(1), 100), new(big.Int).Lsh(big.NewInt(1), 100), big.NewInt(5),
		bytes.NewBufferString("abc"), *bytes.NewBufferString("abc"), bytes.NewReader([]byte("abc")), strings.NewReader("abc"), &strings.Builder{},
		address(atomic.Int64{}), &atomic.Bool{}, &atomic.Value{}, &sync.Mutex{}, struct{ M *sync.Mutex }{&sync.Mutex{}}, &sync.Map{}, &sync.Once{},
		regexp.MustCompile("a+"), time.NewTimer(time.Hour), time.UTC, make(chan int), func() {}, uintptr(1), complex64(1i), complex(1, 2),
		[]chan int{nil}, map[string]func(){}, struct{ C chan int }{}, struct{ E error }{errors.New("x")}, errors.New("x"), []error{errors.New("x")},
		address(address(1)), address(any("x")), map[any]int{"a": 1}, map[struct{ A int }]int{{1}: 2}, map[complex64]int{1: 1}, reflect.ValueOf(1),
		reflect.TypeFor[int](), pairs[chan int]{}, pairs[error]{},
	} {
		typ := reflect.TypeOf(v)
		t.Run(typ.String(), func(t *testing.T) {
			if err := CheckType(typ); err != nil {
				require.ErrorIs(t, err, status.ErrInvalid)
				_, err = EncodePayload(v)
				require.ErrorIs(t, err, status.ErrCapability, "as the value of an any")
				_, err = EncodePayload(map[string]any{"deep": []any{v}})
				require.ErrorIs(t, err, status.ErrCapability, "within an any")
				refused++
				return
			}
			p, err := EncodePayload(v)
			require.NoError(t, err)
			defer p.Close()
			out := reflect.New(typ)
			_, err = DecodePayload(p.Value, p.Storages, out.Interface(), true)
			require.NoError(t, err)
			require.True(t, same(v, out.Elem().Interface()), "sent %#v, received %#v", v, out.Elem().Interface())
			carried++
		})
	}
	require.GreaterOrEqual(t, carried+refused, 120)
	t.Logf("%d types are carried, %d are refused", carried, refused)
}

// same compares values, and times by their instants.
func same(a, b any) bool {
	if x, ok := a.(interface{ Equal(time.Time) bool }); ok {
		return x.Equal(b.(time.Time))
	}
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return reflect.DeepEqual(a, b) || err == nil && err2 == nil && bytes.Equal(x, y)
}

// nested returns bytes below levels of lists.
func nested(levels, n int) any {
	var v any = make([]byte, n)
	for range levels {
		v = []any{v}
	}
	return v
}

// The cost of a value does not depend on its depth.
func TestNestedBytesAreCopiedOnce(t *testing.T) {
	const n = 1 << 20
	p, err := EncodePayload(nested(64, n))
	require.NoError(t, err)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var out any
	_, err = DecodePayload(p.Value, nil, &out, true)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(2*n))
	for range 64 {
		out = out.([]any)[0]
	}
	require.Len(t, out, n)
}

func BenchmarkDecodeNested(b *testing.B) {
	p, err := EncodePayload(nested(64, 1<<20))
	require.NoError(b, err)
	b.SetBytes(int64(len(p.Value)))
	b.ReportAllocs()
	for b.Loop() {
		var out any
		if _, err := DecodePayload(p.Value, nil, &out, true); err != nil {
			b.Fatal(err)
		}
	}
}
