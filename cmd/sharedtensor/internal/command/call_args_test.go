package command

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
)

func TestCallArgs(t *testing.T) {
	t.Parallel()
	var a callArgs
	c := newCallCommand()
	require.NoError(t, a.parse(c, []string{
		"i=3", "f=2.5", "e=1e3", "b=true", "n=null", `q="3"`, "s=hello world", "l=[1, [2.0, -3]]", `m={"a": {"b": 4}}`, "empty=", "eq=a=b",
		"big=18446744073709551615", "t=@llm:x", `at="@x"`, "half=[1,", "two=1 2",
	}))
	require.Equal(t, map[string]any{
		"i": int64(3), "f": 2.5, "e": 1000.0, "b": true, "n": nil, "q": "3", "s": "hello world", "l": []any{int64(1), []any{2.0, int64(-3)}},
		"m": map[string]any{"a": map[string]any{"b": int64(4)}}, "empty": "", "eq": "a=b", "big": uint64(math.MaxUint64), "at": "@x",
		"half": "[1,", "two": "1 2",
	}, a.fields)
	require.Equal(t, map[string]string{"t": "llm:x"}, a.refs)

	for _, row := range []struct {
		whole string
		words []string
		want  string
	}{
		{"", []string{"x"}, `"x" is not key=value; give an argument without fields with --in`},
		{"", []string{"=x"}, `"=x" is not key=value`},
		{"", []string{"a=1", "a=2"}, `"a" is given twice`},
		{"", []string{"a=@x", "a=2"}, `"a" is given twice`},
		{"", []string{"a=@"}, "no file or model after the @"},
		{"", []string{"a=18446744073709551616"}, "does not fit into 64 bits"},
		{"", []string{"a=1e999"}, "does not fit into 64 bits"},
		{"{", nil, "--in: not valid JSON"},
		{"1", []string{"a=1"}, "is the whole argument: remove"},
	} {
		a := callArgs{whole: row.whole}
		err := a.parse(c, row.words)
		require.ErrorIs(t, err, cli.ErrUsage, "%v", row)
		require.ErrorContains(t, err, row.want)
	}
}

// negativeZero matches -0, which a float prints and an integer parses as 0: both are the same argument.
var negativeZero = regexp.MustCompile(`-0($|[\],}])`)

func withoutNegativeZero(text []byte) string {
	return negativeZero.ReplaceAllString(string(text), "0$1")
}

// parseJSON returns an error, or a value that survives a round trip through JSON.
func FuzzParseJSON(f *testing.F) {
	for _, text := range []string{"1", "-0", "-0.0", `{"a": [-0.0, -0.0]}`, "1e3", `{"a": [1.5, null, "x"]}`, "18446744073709551615", "[", "1 1", "\xff", `"\ud800"`, "[1e400]", "[1e20]"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := parseJSON(text)
		if err != nil {
			return
		}
		again, err := json.Marshal(v)
		require.NoError(t, err)
		w, err := parseJSON(string(again))
		if err != nil { // a float without a fraction is parsed as an integer
			require.ErrorContains(t, err, "64 bits")
			return
		}
		once, err := json.Marshal(w)
		require.NoError(t, err)
		require.Equal(t, withoutNegativeZero(again), withoutNegativeZero(once))
	})
}

func TestSplitReference(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "a:b.safetensors")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for ref, want := range map[string][3]any{
		file:                {file, "", true},
		file + ":x":         {file, "x", true},
		file + ":dense/k:0": {file, "dense/k:0", true},
		"llm":               {"llm", "", false},
		"llm:x":             {"llm", "x", false},
		"llm:dense/k:0":     {"llm", "dense/k:0", false},
	} {
		source, name, isFile, err := splitReference(ref)
		require.NoError(t, err)
		require.Equal(t, want, [3]any{source, name, isFile}, ref)
	}
	_, _, _, err := splitReference(filepath.Join(dir, "none.safetensors:x"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestCallUsageErrors(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"call":               "ENDPOINT is missing",
		"call f x":           `"x" is not key=value`,
		"call f --limit -1s": "--limit -1s",
		"submit":             "ENDPOINT is missing",
		"submit f --in {":    "--in: not valid JSON",
		"invalidate":         "ENDPOINT is missing",
		"invalidate f x":     `"x" is not key=value`,
		"wait":               "ID is missing",
		"wait a b":           `unexpected argument "b"`,
		"cancel":             "ID is missing",
		"release":            "ID is missing",
		"tasks now":          "unexpected argument",
		"tasks --state done": `--state "done": use pending, running, completed, failed, cancelled`,
		"top now":            "unexpected argument",
		"top --interval 1ms": "at least 50ms",
	} {
		code, stdout, stderr := inProcess(strings.Fields(line)...)
		require.Equal(t, cli.ExitUsage, code, line)
		require.Empty(t, stdout, line)
		require.Contains(t, stderr, want, line)
	}
}
