package term

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func exampleTable() *Table {
	t := NewTable(Column{Title: "NAME", Give: 1}, Column{Title: "BYTES", Align: Right}, Column{Title: "SOURCE", Give: 2})
	t.Add("llm", "14 B", "/models/a/very/long/path/model.safetensors")
	t.Add("a-longer-name", "1.5 GiB", "x\ny")
	t.Add("short")
	return t
}

func TestTable(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	require.NoError(t, exampleTable().Print(&b)) // not a terminal: nothing is cut
	require.Equal(t, strings.Join([]string{
		"NAME             BYTES  SOURCE",
		"llm               14 B  /models/a/very/long/path/model.safetensors",
		"a-longer-name  1.5 GiB  x\\ny",
		"short",
		"",
	}, "\n"), b.String())
}

func TestTableFitsTheTerminal(t *testing.T) {
	t.Parallel()
	for _, width := range []int{200, 66, 40, 31, 30, 25} {
		var b bytes.Buffer
		require.NoError(t, exampleTable().Write(&b, width))
		for line := range strings.Lines(b.String()) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), width, "%d: %s", width, line)
		}
	}
	var b bytes.Buffer
	require.NoError(t, exampleTable().Write(&b, 40))
	require.Contains(t, b.String(), "a-longer-name  1.5 GiB  x\\ny", "the least important column is cut first")
	require.Contains(t, b.String(), "/models/a/very/…")
	b.Reset()
	require.NoError(t, exampleTable().Write(&b, 5)) // too narrow: each column keeps its minimum width
	require.Contains(t, b.String(), "a-lon…  1.5 GiB  x\\ny")
}

func TestTableKeepsFileNames(t *testing.T) {
	t.Parallel()
	table := NewTable(Column{Title: "NAME"}, Column{Title: "SOURCE", Give: 1, Path: true})
	table.Add("a", "/models/a/very/long/path/model.safetensors")
	table.Add("b", "short")
	var b bytes.Buffer
	require.NoError(t, table.Write(&b, 25))
	require.Equal(t, "NAME  SOURCE\na     …/model.safetensors\nb     short\n", b.String())
}

func TestClip(t *testing.T) {
	t.Parallel()
	require.Equal(t, "abc", Clip("abc", 3))
	require.Equal(t, "ab…", Clip("abcd", 3))
	require.Equal(t, "重é…", Clip("重éxyz", 3))
}

func TestTableWithoutTerminal(t *testing.T) {
	t.Parallel()
	require.Zero(t, TerminalWidth(&bytes.Buffer{}))
	f, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	require.False(t, IsTerminal(f))
	require.NoError(t, f.Close())
	require.False(t, IsTerminal(f))
}
