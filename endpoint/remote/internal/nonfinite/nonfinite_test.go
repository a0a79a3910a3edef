package nonfinite_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/nonfinite"
)

// Numbers are replaced. The same letters in strings are not.
func TestReplace(t *testing.T) {
	quoted := func(word string) string { return `"` + word + `"` }
	for text, want := range map[string]string{
		`[NaN, -Infinity,Infinity]`:           `["NaN", "-Infinity","Infinity"]`,
		`{"NaN":"Infinity","a\"NaN":[1,NaN]}`: `{"NaN":"Infinity","a\"NaN":[1,"NaN"]}`,
		`NaN`:                                 `"NaN"`,
		`["NaN\\",1]`:                         `["NaN\\",1]`,
		`{"a":1}`:                             `{"a":1}`,
		`["NaN`:                               `["NaN`,
		`["Infinity\`:                         `["Infinity\`,
	} {
		got, changed := nonfinite.Replace([]byte(text), quoted)
		require.Equal(t, want, string(got))
		require.Equal(t, text != want, changed, text)
	}
}

func FuzzReplace(f *testing.F) {
	f.Add([]byte(`{"a":[NaN,"x\"NaN"]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, changed := nonfinite.Replace(text, func(string) string { return "0" })
		if json.Valid(text) && (changed || string(got) != string(text)) {
			t.Fatalf("valid JSON was changed: %q", text)
		}
	})
}
