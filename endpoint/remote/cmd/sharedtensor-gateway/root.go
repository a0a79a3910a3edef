package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// commands are the constructors of the program's commands. Each is in its own file.
var commands = []func() *cobra.Command{
	newServeCommand,
	newConfigCommand,
	newBinCommand,
	newSendCommand,
	newReceiveCommand,
	newMirrorCommand,
	newVersionCommand,
}

// Exit statuses: the operation failed, and the command line is invalid.
const (
	statusFailed = 1
	statusUsage  = 2
)

// usageError reports an invalid command line.
type usageError struct{ error }

// Unwrap returns the cause.
func (e usageError) Unwrap() error { return e.error }

// run runs one command line and returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(append([]string{}, args...)) // for nil, cobra uses os.Args
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(usageError)):
		fmt.Fprintf(stderr, "sharedtensor-gateway: %v\n", err)
		return statusUsage
	}
	fmt.Fprintf(stderr, "sharedtensor-gateway: %v\n", err)
	return statusFailed
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "sharedtensor-gateway",
		Short: "Use tensors of an owner from other hosts",
		Example: `  sharedtensor serve silero=model.safetensors &
  sharedtensor-gateway serve
  curl -s localhost:2537/v1/models/silero/manifest`,
		SilenceUsage: true, SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	for _, c := range commands {
		root.AddCommand(c())
	}
	return root
}
