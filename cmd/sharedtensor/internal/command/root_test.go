package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
)

// inProcess runs a command line in this process.
func inProcess(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = Run(context.Background(), args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"servee":                               `there is no command "servee"; did you mean serve?`,
		"frobnicate":                           `there is no command "frobnicate"`,
		"ls --frob":                            "unknown flag: --frob",
		"get":                                  "NAME is missing",
		"get a":                                "-o FILE is missing",
		"get a b -o c":                         `unexpected argument "b"`,
		"get a -o c --version x":               "invalid argument",
		"inspect":                              "NAME or PATH is missing",
		"publish":                              "NAME=PATH is missing",
		"publish dir/llm.safetensors":          `use for example llm=dir/llm.safetensors`,
		"publish dir/m.safetensors.index.json": `use for example m=`,
		"publish a=":                           "no path after the =",
		"publish a=x a=y":                      `"a" is given twice`,
		"publish =x":                           "it is empty",
		"serve a=x --retain -1":                "--retain -1",
		"serve a=x --grace -1s":                "--grace -1s",
		"serve a=x --log-level loud":           "use debug, info, warn or error",
		"serve a=x --allow-uid 4294967295":     "is not a user id",
		"serve a=x --allow-uid -1":             "invalid argument",
		"withdraw":                             "NAME is missing",
		"watch -n -1":                          "--count -1",
		"ping -c -1":                           "must not be negative",
		"ping now":                             "unexpected argument",
		"doctor who":                           "unexpected argument",
		"version 2":                            "unexpected argument",
	} {
		code, stdout, stderr := inProcess(strings.Fields(line)...)
		require.Equal(t, cli.ExitUsage, code, line)
		require.Empty(t, stdout, line)
		require.Contains(t, stderr, want, line)
		require.Contains(t, stderr, "--help)\n", line)
		require.True(t, strings.HasPrefix(stderr, "sharedtensor: "), line)
		require.Equal(t, 1, strings.Count(stderr, "\n"), line)
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := inProcess()
	require.Equal(t, cli.ExitOK, code)
	require.Empty(t, stderr)
	require.Contains(t, stdout, "SHARED_TENSOR_BASE_PATH")
	for _, sub := range newRootCommand().Commands() {
		if sub.Hidden {
			continue
		}
		require.NotEmpty(t, sub.Short, sub.Name())
		require.NotEmpty(t, sub.Example, sub.Name())
		require.NotEmpty(t, sub.GroupID, sub.Name())
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		code int
		text string
	}{
		{nil, cli.ExitOK, ""},
		{errors.New("no"), cli.ExitFailure, "sharedtensor: no\n"},
		{errors.Join(errors.New("one"), errors.New("two\r\nthree")), cli.ExitFailure, "sharedtensor: one; two; three\n"},
		{fmt.Errorf("load: %w", context.Canceled), cli.ExitFailure, "sharedtensor: interrupted\n"},
		{cli.Usagef(newLsCommand(), "what"), cli.ExitUsage, "sharedtensor: what (see ls --help)\n"},
	} {
		var stderr bytes.Buffer
		require.Equal(t, c.code, cli.Report(c.err, &stderr))
		require.Equal(t, c.text, stderr.String())
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	code, stdout, _ := inProcess("version")
	require.Equal(t, cli.ExitOK, code)
	require.Regexp(t, `^sharedtensor \S+.*, protocol 1, with(out)? CUDA, go1`, stdout)
	code, stdout, _ = inProcess("version", "--json")
	require.Equal(t, cli.ExitOK, code)
	var b build
	require.NoError(t, json.Unmarshal([]byte(stdout), &b))
	require.EqualValues(t, 1, b.Protocol)
	require.Equal(t, cli.BuiltWithCUDA, b.CUDA)
	require.Equal(t, "sharedtensor v1 (0123456789ab, modified), protocol 1, without CUDA, go1 a/b",
		build{Version: "v1", Revision: "0123456789abcdef", Modified: true, Protocol: 1, Go: "go1", Platform: "a/b"}.String())
}
