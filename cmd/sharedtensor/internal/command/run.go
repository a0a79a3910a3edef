package command

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
)

// Main runs a command line of the program, without the program's name, and returns the exit status. The first SIGINT or
// SIGTERM cancels its context. After that the signals have their default effect, so a second one ends the process
// immediately.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return run(ctx, args, stdin, stdout, stderr)
}

// run runs one command line and returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(append([]string{}, args...)) // for nil, cobra uses the arguments of the process
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return cli.Report(root.ExecuteContext(ctx), stderr)
}
