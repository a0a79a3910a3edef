package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// commands are the commands of the program; each is a file of its own.
var commands = []func() *cobra.Command{
	newServeCommand,
	newConfigCommand,
	newBinCommand,
	newSendCommand,
	newReceiveCommand,
	newMirrorCommand,
	newVersionCommand,
}

// Exit statuses: what was asked for failed, and what was asked for makes no sense.
const (
	statusFailed = 1
	statusUsage  = 2
)

// usageError is a command line that makes no sense.
type usageError struct{ error }

// Unwrap returns the reason.
func (e usageError) Unwrap() error { return e.error }

// run runs one command line and returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(append([]string{}, args...)) // cobra takes nil for those of the process
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
