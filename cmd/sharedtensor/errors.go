package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Exit statuses.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// errUsage is a command line that makes no sense.
var errUsage = errors.New("usage")

// usage is an error about the command line. It answers for errUsage and names the help that says more.
type usage struct {
	command string
	err     error
}

func (u *usage) Error() string {
	return fmt.Sprintf("%v (see %s --help)", u.err, u.command)
}

func (u *usage) Unwrap() []error { return []error{errUsage, u.err} }

// usageError makes err one about the command line of c.
func usageError(c *cobra.Command, err error) error { return &usage{command: c.CommandPath(), err: err} }

// usagef is usageError with a text.
func usagef(c *cobra.Command, format string, args ...any) error {
	return usageError(c, fmt.Errorf(format, args...))
}

// errSilent is a failure of which all is said already.
var errSilent = errors.New("failed")

// report prints an error as one line and returns the exit status.
func report(err error, stderr io.Writer) int {
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errSilent):
		return exitFailure
	}
	text := err.Error()
	if errors.Is(err, context.Canceled) {
		text = "interrupted"
	}
	fmt.Fprintln(stderr, "sharedtensor: "+printable(oneLine(text)))
	if errors.Is(err, errUsage) {
		return exitUsage
	}
	return exitFailure
}

// oneLine joins the lines of a text: of joined errors, or of a name that a peer chose.
func oneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Join(lines, "; ")
}

// args wraps a check of positional arguments so that what it says is about the command line.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, words []string) error {
		if err := check(c, words); err != nil {
			return usageError(c, err)
		}
		return nil
	}
}

// exactly asks for the named positional arguments, and says which one is missing.
func exactly(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, words []string) error {
		switch {
		case len(words) < len(names):
			return usagef(c, "%s is missing", names[len(words)])
		case len(words) > len(names):
			return usagef(c, "there is nothing to do with %q", words[len(names)])
		}
		return nil
	}
}
