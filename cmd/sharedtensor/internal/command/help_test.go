package command

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
)

// Help for an unknown command fails and suggests the nearest one.
func TestHelpUnknownCommand(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := inProcess("help", "serv")
	require.Equal(t, cli.ExitUsage, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, `there is no command "serv"; did you mean serve?`)
	code, _, stderr = inProcess("help", "bench", "nothing")
	require.Equal(t, cli.ExitUsage, code, stderr)
	code, stdout, _ = inProcess("help", "serve")
	require.Equal(t, cli.ExitOK, code)
	_, same, _ := inProcess("serve", "--help")
	require.Equal(t, same, stdout)
	code, stdout, _ = inProcess("help")
	require.Equal(t, cli.ExitOK, code)
	require.Contains(t, stdout, "This host:")
}

// Help fits a terminal of 80 columns. Examples, which must not be wrapped, fit 100 columns.
func TestHelpFitsTheTerminal(t *testing.T) {
	t.Parallel()
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		_, text, _ := inProcess(append(strings.Fields(c.CommandPath())[1:], "--help")...)
		require.NotEmpty(t, text)
		for line := range strings.Lines(text) {
			limit := helpWidth
			if strings.Contains(c.Example, strings.TrimSpace(line)) {
				limit = 100
			}
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), limit, "%s: %s", c.CommandPath(), line)
		}
		for _, sub := range c.Commands() {
			check(sub)
		}
	}
	check(newRootCommand())
}

func TestReflow(t *testing.T) {
	t.Parallel()
	require.Equal(t, "one two\nthree\n\n  kept   as it is\nfour\nfive:\n  six", reflow("one two three\n\n  kept   as it is\nfour\nfive:\n  six", 8))
	require.Empty(t, reflow("", 8))
}
