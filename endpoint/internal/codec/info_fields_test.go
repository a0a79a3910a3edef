package codec

import (
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

type innerIn struct {
	Rate float32 `cbor:"rate,omitempty"`
}

type listIn struct {
	_    struct{} `cbor:",toarray"`
	A, B int
}

type selfIn struct {
	Next *selfIn `json:"next"`
}

type fieldsIn struct {
	X      *tensor.Tensor    `json:"x"`
	Model  *module.StateDict `json:"model,omitempty"`
	Count  int
	Late   time.Time             `json:"late,omitzero"`
	Big    *big.Int              `json:"big"`
	Inner  innerIn               `json:"inner"`
	Many   map[string][]*innerIn `json:"many"`
	Pair   listIn                `json:"pair"`
	Name   *string               `json:"name"`
	Any    any                   `json:"any"`
	Hidden int                   `json:"-"`
	Plain  struct{ N int }       `json:"plain"`
	EmbeddedIn
}

func TestFieldsOfEndpoints(t *testing.T) {
	t.Parallel()
	inner := []message.FieldInfo{{Name: "rate", Type: "float32", Optional: true}}
	want := []message.FieldInfo{
		{Name: "x", Type: "*tensor.Tensor"},
		{Name: "model", Type: "*module.StateDict", Optional: true},
		{Name: "Count", Type: "int"},
		{Name: "late", Type: "time.Time", Optional: true},
		{Name: "big", Type: "*big.Int", Optional: true},
		{Name: "inner", Type: "codec.innerIn", Fields: inner},
		{Name: "many", Type: "map[string][]*codec.innerIn", Fields: inner},
		{Name: "pair", Type: "codec.listIn"},
		{Name: "name", Type: "*string", Optional: true},
		{Name: "any", Type: "interface {}"},
		{Name: "plain", Type: "struct", Fields: []message.FieldInfo{{Name: "N", Type: "int"}}},
	}
	got := DescribeFields(reflect.TypeFor[*fieldsIn]())
	require.Equal(t, want, got[:len(want)])
	require.Len(t, got, len(want)+len(fieldsOf(reflect.TypeFor[EmbeddedIn]())), "embedded fields are its own")
	for _, none := range []reflect.Type{
		reflect.TypeFor[int](), reflect.TypeFor[*tensor.Tensor](), reflect.TypeFor[[]*module.StateDict](), reflect.TypeFor[time.Time](),
		reflect.TypeFor[any](), reflect.TypeFor[listIn](), reflect.TypeFor[struct{}](), reflect.TypeFor[[]byte](),
	} {
		require.Nil(t, DescribeFields(none), none)
	}
	require.Len(t, DescribeFields(reflect.TypeFor[[]innerIn]()), 1)
}

func TestDescribeFieldsLimits(t *testing.T) {
	t.Parallel()
	depth := 0
	for list := DescribeFields(reflect.TypeFor[selfIn]()); list != nil; list = list[0].Fields {
		require.Equal(t, "next", list[0].Name)
		depth++
	}
	require.Equal(t, DescribedDepth, depth)

	var many []reflect.StructField
	for i := range DescribedFields + 10 {
		many = append(many, reflect.StructField{Name: "F" + strings.Repeat("a", i), Type: reflect.TypeFor[int]()})
	}
	list := DescribeFields(reflect.StructOf(many))
	require.Len(t, list, DescribedFields)
	require.LessOrEqual(t, len(list[DescribedFields-1].Name), DescribedBytes+len("…"))
}
