// Command sharedtensor keeps models in memory that every process of a host can use in place, and lists the processes
// that use them.
//
// One process owns the models:
//
//	sharedtensor serve llm=model.safetensors
//
// Other processes attach to them by name, in microseconds and without a copy, through package endpoint or with the
// other commands, such as ls, inspect, get, publish, withdraw, watch and ping. The command doctor reports what this
// host can share, and why something cannot be shared.
//
// The exit status is 0 on success, 1 on failure, and 2 if the command line is invalid. Errors are one line on standard
// error.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/command"
)

// The first SIGINT or SIGTERM cancels the context of the command. After that the signals have their default effect, so
// a second one ends the process immediately.
func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	code := command.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
