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
)

// shade is a type whose String says the same of all values.
type shade int

func (shade) String() string { return "grey" }

// phase is a number that the codec does not know, of a type that does.
type phase complex128

func (p phase) MarshalCBOR() ([]byte, error) { return []byte{0xf6}, nil }

type templateIn struct {
	Model struct {
		Hidden int     `json:"hidden_size"`
		Rate   float32 `json:"rate"`
	} `json:"model"`
	A, B   int
	Name   string
	Option *string
	Shade  shade
	List   []int
	*EmbeddedIn
}

type EmbeddedIn struct{ Extra bool }

func TestTemplates(t *testing.T) {
	typ := reflect.TypeFor[templateIn]()
	in := templateIn{A: 1, B: 23, Name: `a"b`, Shade: 2}
	in.Model.Hidden, in.Model.Rate = 768, 0.1
	for text, want := range map[string]string{
		"":                          "",
		"model:{model.hidden_size}": "model:768",
		"{model.rate}":              "0.1",
		"{A}{B}":                    "1,23",
		"{A}-{B}":                   "1-23",
		"{{{A}}}":                   "{1}",
		"{Name}{Option}":            `"a\"b",nil`,
		"{Shade}":                   "2",
		"{Extra}":                   "nil",
		"constant":                  "constant",
		"{A}1{B}":                   "1,123",
		"{A}.5":                     "1,.5",
		"{A}e{B}":                   "1,e23",
		"{A}x1":                     "1x1",
		"{A}{{1":                    "1{1",
	} {
		p, err := parseTemplate(text, typ)
		require.NoError(t, err, text)
		require.Equal(t, "key:"+want, p.expand(reflect.ValueOf(in)), text)
	}
	option := "o"
	in.Option, in.EmbeddedIn = &option, &EmbeddedIn{Extra: true}
	p, err := parseTemplate("{Option}{Extra}", reflect.TypeFor[*templateIn]())
	require.NoError(t, err)
	require.Equal(t, `key:"o",true`, p.expand(reflect.ValueOf(&in)))

	for _, text := range []string{"{", "}", "{}", "{A", "A}", "{a}", "{A.B}", "{model}", "{List}", "{model.}", "{.A}", "{{A}", "{ A }"} {
		_, err := parseTemplate(text, typ)
		require.ErrorIs(t, err, ErrInvalid, text)
	}
	_, err = parseTemplate("{A}", reflect.TypeFor[int]())
	require.ErrorIs(t, err, ErrInvalid)
}

// Whatever stands between two fields, different values make different keys.
func TestTemplatesTellValuesApart(t *testing.T) {
	typ := reflect.TypeFor[templateIn]()
	values := []int{0, 1, 2, 5, 10, 11, 111, -1, -11}
	rates := []float32{0, 1, 11, 0.5, 1.5, 1e10, 1e-10, 11e10, -1}
	for _, between := range []string{"", "1", "11", ".", ".5", "e", "e1", "e+", "-", "+", "-1", ",", "x", "0x", "nil", "{{", "\"", " "} {
		seen := map[string]templateIn{}
		p, err := parseTemplate("1{A}"+between+"{model.rate}"+between+"{B}1", typ)
		require.NoError(t, err)
		for _, a := range values {
			for _, rate := range rates {
				for _, b := range values {
					in := templateIn{A: a, B: b}
					in.Model.Rate = rate
					key := p.expand(reflect.ValueOf(in))
					if other, known := seen[key]; known {
						require.Equal(t, other, in, "%q makes one key %s of both", between, key)
					}
					seen[key] = in
				}
			}
		}
	}
}

func TestLongKeysAreHashed(t *testing.T) {
	d := &definition{name: "e", in: reflect.TypeFor[templateIn]()}
	require.NoError(t, d.options.apply(d, nil, []Option{CacheKey("{Name}")}))
	key := func(name string) string {
		k, keyed := d.key(&arguments{value: &templateIn{Name: name}})
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

func TestRegistrationsAreChecked(t *testing.T) {
	r := NewRegistry()
	fn := func(context.Context, templateIn) (int, error) { return 0, nil }
	for _, opts := range [][]Option{
		{CacheKey("{nothing}")}, {SerializedBy("{nothing}")}, {Timeout(0)}, {Timeout(-1)}, {NoCache(), CacheKey("k")},
		{NoCache(), Cached()},
	} {
		require.ErrorIs(t, Register(r, "x", fn, opts...), ErrInvalid)
	}
	require.ErrorIs(t, Register(r, "", fn), ErrInvalid)
	require.ErrorIs(t, Register(r, "a\nb", fn), ErrInvalid)
	require.ErrorIs(t, Register(r, "x", func(context.Context, chan int) (int, error) { return 0, nil }), ErrInvalid)
	var none func(context.Context, int) (int, error)
	require.ErrorIs(t, Register(r, "x", none), ErrInvalid)
	require.ErrorIs(t, RegisterStream[int, int](r, "x", nil), ErrInvalid)
	require.ErrorIs(t, Register(r, "x", fn, nil), ErrInvalid)
	require.ErrorIs(t, Register(nil, "x", fn), ErrInvalid)
	require.ErrorIs(t, RegisterStream(nil, "x", func(context.Context, int) iter.Seq2[int, error] { return nil }), ErrInvalid)
	require.ErrorIs(t, Register(r, "x", func(context.Context, complex64) (int, error) { return 0, nil }), ErrInvalid)
	require.ErrorIs(t, Register(r, "x", func(context.Context, int) (map[string][]complex128, error) { return nil, nil }), ErrInvalid)
	require.NoError(t, Register(new(Registry), "x", func(context.Context, phase) (int, error) { return 0, nil }), "it encodes itself")
	require.Empty(t, r.list(), "nothing that was refused is there")
	require.NoError(t, Register(r, "x", fn))
	require.ErrorIs(t, Register(r, "x", fn), ErrRegistered)
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
