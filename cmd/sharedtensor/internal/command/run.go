package command

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
)

// Main runs a command line of the program, without its name, and returns the exit status. It goes on until it ends or
// the first SIGINT or SIGTERM cancels its context. From then on the signals have their usual effect again, so a second
// one ends the process whatever it is doing.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return run(ctx, args, stdin, stdout, stderr)
}

// run runs one command line and returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(append([]string{}, args...)) // cobra takes nil for those of the process
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return cli.Report(root.ExecuteContext(ctx), stderr)
}
