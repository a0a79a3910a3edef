//go:build unix

// Command chaos looks for what no test of one subject finds. An owner and some clients, each a process, do random
// operations for a while: clients publish, acquire, watch, call, submit, hold and give back, many at once, with
// contexts that often end near the answer. Meanwhile processes are killed, stopped, drained and started again. Every
// element of every tensor that anybody gets is checked against what defines it. Now and then all rest: then watchers
// and handles must know what the owner has, and after everything was given back, leases, references, bytes,
// descriptors, mappings and goroutines must be back where they began.
//
//	go run -race ./endpoint/internal/chaos -duration 20m
//	go run -race ./endpoint/internal/chaos -seed 17 -duration 1m -clients 4
//
// The seed decides on the operations of each process and on which process is disturbed when. It does not decide on how
// the system schedules them, so a failure may take more than one run to come back. The exit status is 1 where something
// was found.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if os.Getenv(roleEnv) != "" {
		os.Exit(childMain())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout))
}

// run is the program. It returns the exit status.
func run(ctx context.Context, args []string, out io.Writer) int {
	p := plan{Quiet: 90 * time.Second}
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Uint64Var(&p.Seed, "seed", uint64(time.Now().UnixNano())%1_000_000, "what decides on the operations")
	flags.DurationVar(&p.Duration, "duration", time.Minute, "how long")
	flags.IntVar(&p.Clients, "clients", 8, "how many client processes")
	flags.DurationVar(&p.Quiet, "quiet", p.Quiet, "how often all rest and are counted")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 || p.Clients < 1 || p.Duration <= 0 || p.Quiet <= 0 {
		fmt.Fprintln(out, "chaos takes no arguments, and wants at least one client, a duration and an interval above zero")
		return 2
	}
	r := newRunner(p, out)
	if err := r.run(ctx); err != nil {
		fmt.Fprintf(out, "chaos: FAILED: %v\nchaos: repeat it: %s\n", err, p.command())
		return 1
	}
	return 0
}

// plan says what to do.
type plan struct {
	Seed     uint64
	Duration time.Duration
	Clients  int
	Quiet    time.Duration
}

// command is the line that repeats it.
func (p plan) command() string {
	return fmt.Sprintf("go run -race ./endpoint/internal/chaos -seed %d -duration %s -clients %d -quiet %s", p.Seed, p.Duration, p.Clients, p.Quiet)
}
