package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func exampleTable() *table {
	t := newTable(column{title: "NAME", give: 1}, column{title: "BYTES", align: right}, column{title: "SOURCE", give: 2})
	t.add("llm", "14 B", "/models/a/very/long/path/model.safetensors")
	t.add("a-longer-name", "1.5 GiB", "x\ny")
	t.add("short")
	return t
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, exampleTable().print(&b)) // no terminal: nothing is cut
	require.Equal(t, strings.Join([]string{
		"NAME             BYTES  SOURCE",
		"llm               14 B  /models/a/very/long/path/model.safetensors",
		"a-longer-name  1.5 GiB  x\\ny",
		"short",
		"",
	}, "\n"), b.String())
}

func TestTableFitsTheTerminal(t *testing.T) {
	for _, width := range []int{200, 66, 40, 31, 30, 25} {
		var b bytes.Buffer
		require.NoError(t, exampleTable().write(&b, width))
		for line := range strings.Lines(b.String()) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), width, "%d: %s", width, line)
		}
	}
	var b bytes.Buffer
	require.NoError(t, exampleTable().write(&b, 40))
	require.Contains(t, b.String(), "a-longer-name  1.5 GiB  x\\ny", "the least important column is cut first")
	require.Contains(t, b.String(), "/models/a/very/…")
	b.Reset()
	require.NoError(t, exampleTable().write(&b, 5)) // too narrow for anything: some of each column is left
	require.Contains(t, b.String(), "a-lon…  1.5 GiB  x\\ny")
}

func TestClip(t *testing.T) {
	require.Equal(t, "abc", clip("abc", 3))
	require.Equal(t, "ab…", clip("abcd", 3))
	require.Equal(t, "重é…", clip("重éxyz", 3))
}

func TestNoTerminal(t *testing.T) {
	require.Zero(t, terminalWidth(&bytes.Buffer{}))
	f, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	require.False(t, isTerminal(f))
	require.NoError(t, f.Close())
	require.False(t, isTerminal(f))
}
