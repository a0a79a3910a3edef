//go:build unix

// Package chaos contains two searches for bugs, which run as test binaries: random operations, and hostile clients
// (attack_linux_test.go). The random operations:
//
// An owner, several clients and several workers, each a process,
// run for a while. Workers offer endpoints, withdraw them and offer them again. Clients publish, acquire, watch, follow,
// call, submit, and hold and release references concurrently, with contexts that often end near the answer. One client
// is in the owner's process. One process in three has no rings, and every second client publishes in reused memory, as
// the owner does. Meanwhile processes are killed, stopped, drained and restarted. Every element of every received tensor
// is checked. At intervals all processes pause: the state of watchers, followers, handles and offers must then match the
// owner's. After everything was released, the numbers of leases, references, bytes, descriptors, mappings and goroutines
// must equal the initial ones.
//
//	go test -race -c -o chaos ./endpoint/internal/chaos
//	./chaos run -duration 20m
//	./chaos run -seed 17 -duration 1m -clients 4
//	./chaos run -keep -duration 20m
//
// With -keep each owner adopts the versions of the last one from a keeper: a version is then the same at all owners, and
// watchers, followers and handles continue.
//
// The seed determines the operations and the disturbances of each process, but not how the system schedules them. A
// failure may take several runs to reproduce. The exit status is 1 if something was found.
package chaos

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) != "" {
		os.Exit(childMain())
	}
	if len(os.Args) > 1 && os.Args[1] == "run" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		os.Exit(run(ctx, os.Args[2:], os.Stdout))
	}
	// The tests mostly wait, each with separate processes. The command-line flag overrides this.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	proctest.Main(m)
}

// run runs the program and returns the exit status.
func run(ctx context.Context, args []string, out io.Writer) int {
	p := plan{Quiet: 90 * time.Second}
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Uint64Var(&p.Seed, "seed", uint64(time.Now().UnixNano())%1_000_000, "seed of the random operations")
	flags.DurationVar(&p.Duration, "duration", time.Minute, "duration of the run")
	flags.IntVar(&p.Clients, "clients", 8, "number of client processes")
	flags.IntVar(&p.Workers, "workers", 3, "number of processes that offer endpoints")
	flags.BoolVar(&p.Keep, "keep", false, "keep versions while no owner runs")
	flags.DurationVar(&p.Quiet, "quiet", p.Quiet, "interval at which all processes pause and are checked")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 || p.Clients < 1 || p.Workers < 0 || p.Duration <= 0 || p.Quiet <= 0 {
		fmt.Fprintln(out, "chaos takes no arguments and requires at least one client, a positive duration and a positive interval")
		return 2
	}
	r := newRunner(p, out)
	if err := r.run(ctx); err != nil {
		fmt.Fprintf(out, "chaos: FAILED: %v\nchaos: repeat it: %s\n", err, p.command())
		return 1
	}
	return 0
}

// plan is the configuration of a run.
type plan struct {
	Seed     uint64
	Duration time.Duration
	Clients  int
	Workers  int
	Quiet    time.Duration
	Keep     bool
}

// command returns the command line that repeats the run.
func (p plan) command() string {
	return fmt.Sprintf("go test -race -c -o chaos ./endpoint/internal/chaos && ./chaos run -seed %d -duration %s -clients %d -workers %d -quiet %s -keep=%t", p.Seed, p.Duration, p.Clients, p.Workers, p.Quiet, p.Keep)
}
