package endpoint

import (
	"context"
	"iter"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// selfEncoded is a number that the codec does not support, with its own encoding.
type selfEncoded complex128

func (p selfEncoded) MarshalCBOR() ([]byte, error) { return []byte{0xf6}, nil }

type registeredIn struct {
	A, B int
	Name string
}

func TestRegistryChecks(t *testing.T) {
	t.Parallel()
	r := NewRegistry()
	fn := func(context.Context, registeredIn) (int, error) { return 0, nil }
	for _, opts := range [][]Option{
		{CacheKey("{nothing}")}, {SerializedBy("{nothing}")}, {Timeout(0)}, {Timeout(-1)}, {NoCache(), CacheKey("k")},
		{NoCache(), Cached()},
	} {
		require.ErrorIs(t, Register(r, "x", fn, opts...), status.ErrInvalid)
	}
	require.ErrorIs(t, Register(r, "", fn), status.ErrInvalid)
	require.ErrorIs(t, Register(r, "a\nb", fn), status.ErrInvalid)
	require.ErrorIs(t, Register(r, "x", func(context.Context, chan int) (int, error) { return 0, nil }), status.ErrInvalid)
	var none func(context.Context, int) (int, error)
	require.ErrorIs(t, Register(r, "x", none), status.ErrInvalid)
	require.ErrorIs(t, RegisterStream[int, int](r, "x", nil), status.ErrInvalid)
	require.ErrorIs(t, Register(r, "x", fn, nil), status.ErrInvalid)
	require.ErrorIs(t, Register(nil, "x", fn), status.ErrInvalid)
	require.ErrorIs(t, RegisterStream(nil, "x", func(context.Context, int) iter.Seq2[int, error] { return nil }), status.ErrInvalid)
	require.ErrorIs(t, Register(r, "x", func(context.Context, complex64) (int, error) { return 0, nil }), status.ErrInvalid)
	require.ErrorIs(t, Register(r, "x", func(context.Context, int) (map[string][]complex128, error) { return nil, nil }), status.ErrInvalid)
	require.NoError(t, Register(new(Registry), "x", func(context.Context, selfEncoded) (int, error) { return 0, nil }), "it encodes itself")
	require.Empty(t, r.registered().List(), "nothing that was refused is there")
	require.NoError(t, Register(r, "x", fn))
	require.ErrorIs(t, Register(r, "x", fn), status.ErrRegistered)
}

func TestCacheKeyHashed(t *testing.T) {
	t.Parallel()
	d := &engine.Definition{Name: "e", In: reflect.TypeFor[registeredIn]()}
	require.NoError(t, applyOptions(d, nil, []Option{CacheKey("{Name}")}))
	key := func(name string) string {
		k, keyed := d.Key(&engine.Arguments{Value: &registeredIn{Name: name}})
		require.True(t, keyed)
		return k.ID
	}
	require.Equal(t, `key:"short"`, key("short"))
	long := strings.Repeat("x", 1<<20)
	require.LessOrEqual(t, len(key(long)), 128)
	require.Equal(t, key(long), key(long))
	require.NotEqual(t, key(long), key(long+"y"))
	require.NotEqual(t, key(long), key(strings.TrimPrefix(key(long), "key:")))
}

type rateIn struct {
	Rate float32 `json:"rate,omitempty"`
}

func TestServerInfoEndpointFields(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	r := NewRegistry()
	server, err := NewServer(ServerOptions{Local: true, Registry: r})
	require.NoError(t, err)
	defer server.Close()
	err = Register(r, "e", func(_ context.Context, in struct{ Inner []rateIn }) (map[string]rateIn, error) { return nil, nil })
	require.NoError(t, err)
	list, err := server.Endpoints(ctx)
	require.NoError(t, err)
	rate := []FieldInfo{{Name: "rate", Type: "float32", Optional: true}}
	require.Equal(t, []FieldInfo{{Name: "Inner", Type: "[]endpoint.rateIn", Fields: rate}}, list[0].InFields)
	require.Equal(t, rate, list[0].OutFields)
	require.Equal(t, "struct", list[0].In)
	require.Equal(t, "map[string]endpoint.rateIn", list[0].Out)
}
