package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

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
