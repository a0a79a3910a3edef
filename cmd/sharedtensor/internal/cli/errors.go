package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/task"
)

// Exit statuses.
const (
	ExitOK      = 0
	ExitFailure = 1
	ExitUsage   = 2
)

// ErrUsage matches errors about the command line.
var ErrUsage = errors.New("usage")

// usage is an error about the command line. It matches ErrUsage and names the help to read.
type usage struct {
	command string
	err     error
}

func (u *usage) Error() string {
	return fmt.Sprintf("%v (see %s --help)", u.err, u.command)
}

func (u *usage) Unwrap() []error { return []error{ErrUsage, u.err} }

// UsageError returns err as an error about the command line of c.
func UsageError(c *cobra.Command, err error) error { return &usage{command: c.CommandPath(), err: err} }

// Usagef is UsageError with a formatted message.
func Usagef(c *cobra.Command, format string, args ...any) error {
	return UsageError(c, fmt.Errorf(format, args...))
}

// errSilent is a failure that has been reported already.
var errSilent = errors.New("failed")

// ExitStatus is the status of another process, which this one ends with. Report prints nothing.
type ExitStatus int

// Error returns the status as text.
func (s ExitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// Report prints an error as one line and returns the exit status.
func Report(err error, stderr io.Writer) int {
	var status ExitStatus
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &status):
		return int(status)
	case errors.Is(err, errSilent):
		return ExitFailure
	}
	text := err.Error()
	if errors.Is(err, context.Canceled) && !errors.Is(err, task.ErrCancelled) && !errors.Is(err, endpoint.ErrUnavailable) {
		text = "interrupted"
	}
	fmt.Fprintln(stderr, "sharedtensor: "+term.Printable(OneLine(text)))
	if errors.Is(err, ErrUsage) {
		return ExitUsage
	}
	return ExitFailure
}

// OneLine joins the lines of a text, such as joined errors or a name that a peer chose.
func OneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Join(lines, "; ")
}

// Args wraps a check of positional arguments so that its errors match ErrUsage.
func Args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, words []string) error {
		if err := check(c, words); err != nil {
			return UsageError(c, err)
		}
		return nil
	}
}

// Exactly requires the named positional arguments. The error names the missing one.
func Exactly(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, words []string) error {
		switch {
		case len(words) < len(names):
			return Usagef(c, "%s is missing", names[len(words)])
		case len(words) > len(names):
			return Usagef(c, "unexpected argument %q", words[len(names)])
		}
		return nil
	}
}

// JSONFlag adds --json to a command and returns its value.
func JSONFlag(c *cobra.Command) *bool {
	return c.Flags().Bool("json", false, "print JSON")
}
