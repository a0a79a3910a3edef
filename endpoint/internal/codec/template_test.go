package codec

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// shade is a type whose String method returns the same text for all values.
type shade int

func (shade) String() string { return "grey" }

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
	t.Parallel()
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
		p, err := ParseTemplate(text, typ)
		require.NoError(t, err, text)
		require.Equal(t, "key:"+want, p.Expand(reflect.ValueOf(in)), text)
	}
	option := "o"
	in.Option, in.EmbeddedIn = &option, &EmbeddedIn{Extra: true}
	p, err := ParseTemplate("{Option}{Extra}", reflect.TypeFor[*templateIn]())
	require.NoError(t, err)
	require.Equal(t, `key:"o",true`, p.Expand(reflect.ValueOf(&in)))

	for _, text := range []string{"{", "}", "{}", "{A", "A}", "{a}", "{A.B}", "{model}", "{List}", "{model.}", "{.A}", "{{A}", "{ A }"} {
		_, err := ParseTemplate(text, typ)
		require.ErrorIs(t, err, status.ErrInvalid, text)
	}
	_, err = ParseTemplate("{A}", reflect.TypeFor[int]())
	require.ErrorIs(t, err, status.ErrInvalid)
}

// Different values make different keys for any text between two fields.
func TestTemplateKeysAreDistinct(t *testing.T) {
	t.Parallel()
	typ := reflect.TypeFor[templateIn]()
	values := []int{0, 1, 2, 5, 10, 11, 111, -1, -11}
	rates := []float32{0, 1, 11, 0.5, 1.5, 1e10, 1e-10, 11e10, -1}
	for _, between := range []string{"", "1", "11", ".", ".5", "e", "e1", "e+", "-", "+", "-1", ",", "x", "0x", "nil", "{{", "\"", " "} {
		seen := map[string]templateIn{}
		p, err := ParseTemplate("1{A}"+between+"{model.rate}"+between+"{B}1", typ)
		require.NoError(t, err)
		for _, a := range values {
			for _, rate := range rates {
				for _, b := range values {
					in := templateIn{A: a, B: b}
					in.Model.Rate = rate
					key := p.Expand(reflect.ValueOf(in))
					if other, known := seen[key]; known {
						require.Equal(t, other, in, "%q makes one key %s of both", between, key)
					}
					seen[key] = in
				}
			}
		}
	}
}
