// Command sharedtensor-gateway makes an owner of tensors available to other hosts.
//
//	sharedtensor serve silero=model.safetensors &
//	sharedtensor-gateway serve
//	curl -s localhost:2537/jsonrpc -d '{"jsonrpc":"2.0","id":1,"method":"list_models"}' -H 'Content-Type: application/json'
//
// It attaches to the owner's socket like any other process of the host. It serves JSON-RPC and model files over HTTP,
// tensors and remote compute over gRPC, functions by the Open Inference Protocol over both, and bins over NATS. A
// status page is at http://localhost:2537/.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/internal/logs"
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
	last := logs.NewWriter(stderr) // a reader that has stopped must not keep the process
	defer last.Close(lastLines)
	stderr = last
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

// lastLines limits the wait for a reader of the last lines of a process.
const lastLines = time.Second

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

func main() {
	os.Exit(interruptible(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// interruptible runs the command line until it ends or the first SIGINT or SIGTERM cancels its context. After that the
// signals have their default effect, so that a second one always ends the process.
func interruptible(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return run(ctx, args, stdin, stdout, stderr)
}

// version returns the module version of the program, or "devel".
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "devel"
	}
	return info.Main.Version
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), version())
			return err
		},
	}
}
