package endpoint

import (
	"context"
	"iter"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// selfEncoded is a number that the codec does not know, of a type that does.
type selfEncoded complex128

func (p selfEncoded) MarshalCBOR() ([]byte, error) { return []byte{0xf6}, nil }

type registeredIn struct {
	A, B int
	Name string
}

func TestRegistrationsAreChecked(t *testing.T) {
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
	require.Empty(t, r.list(), "nothing that was refused is there")
	require.NoError(t, Register(r, "x", fn))
	require.ErrorIs(t, Register(r, "x", fn), status.ErrRegistered)
}

func TestLatencyQuantiles(t *testing.T) {
	l := new(latency)
	require.Equal(t, []time.Duration{0, 0}, l.quantiles(0.5, 0.99))
	random := rand.New(rand.NewPCG(1, 2))
	var all []time.Duration
	for range 10_000 {
		d := time.Duration(random.ExpFloat64() * float64(time.Millisecond))
		all = append(all, d)
		l.add(d, false)
	}
	slices.Sort(all)
	parts := []float64{0.01, 0.5, 0.9, 0.99, 1}
	for i, got := range l.quantiles(parts...) {
		want := all[max(int(parts[i]*float64(len(all)))-1, 0)]
		require.GreaterOrEqual(t, got, want, parts[i])
		require.LessOrEqual(t, float64(got), float64(want)*1.126, parts[i])
	}
	for _, ns := range []uint64{0, 1, 7, 8, 9, 15, 16, 1000, 1 << 40, 1<<63 - 1} {
		b := bucketOf(ns)
		require.GreaterOrEqual(t, bucketLimit(b), time.Duration(ns))
		if b > 0 {
			require.Less(t, bucketLimit(b-1), time.Duration(ns))
		}
	}
	l.add(-time.Second, true) // a clock that was set back
	require.EqualValues(t, 1, l.failed.Load())
	require.EqualValues(t, 10_001, l.count.Load())
}

func TestTurns(t *testing.T) {
	var locks turns
	ctx := context.Background()
	unlock, err := locks.lock(ctx, "a")
	require.NoError(t, err)
	other, err := locks.lock(ctx, "b")
	require.NoError(t, err, "another key is another lock")
	other()
	gone, cancel := context.WithCancelCause(ctx)
	cancel(context.DeadlineExceeded)
	_, err = locks.lock(gone, "a")
	require.ErrorIs(t, err, context.DeadlineExceeded)

	counter := 0
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			unlock, err := locks.lock(ctx, "a")
			if err != nil {
				t.Error(err)
				return
			}
			counter++
			unlock()
		})
	}
	unlock()
	all.Wait()
	require.Equal(t, 50, counter)
	require.Empty(t, locks.keys, "a key that nobody uses is forgotten")
}

func TestCredit(t *testing.T) {
	c := &credit{items: 2, more: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	require.NoError(t, c.take(ctx))
	require.NoError(t, c.take(ctx))
	taken := make(chan error)
	go func() { taken <- c.take(ctx) }()
	c.add(1)
	require.NoError(t, <-taken)
	go func() { taken <- c.take(ctx) }()
	cancel()
	require.ErrorIs(t, <-taken, context.Canceled)
	for range 100 {
		c.add(1<<64 - 1) // a client cannot make the number wrap around
	}
	require.NoError(t, c.take(context.Background()))
}

func TestLongKeysAreHashed(t *testing.T) {
	d := &definition{name: "e", in: reflect.TypeFor[registeredIn]()}
	require.NoError(t, d.options.apply(d, nil, []Option{CacheKey("{Name}")}))
	key := func(name string) string {
		k, keyed := d.key(&arguments{value: &registeredIn{Name: name}})
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
