package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// notInQuickRun is the reason why a quick run has no ratios to iceoryx2: building its program takes minutes.
const notInQuickRun = "iceoryx2 is not measured in a quick run"

func main() {
	if os.Getenv(childEnv) != "" {
		if err := serveChild(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run runs the program. It writes the report to out and the progress to progress.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.SetOutput(progress)
	quick := flags.Bool("quick", false, "run a minimal measurement, only to test the program")
	rounds := flags.Int("rounds", 0, "number of rounds; 0 for the default")
	rival := flags.String("iceoryx2", "", "executable built from the folder iceoryx2; built if empty")
	only := flags.String("only", "", "case to measure: calls, results, attach, arguments, publish, switch, clients, load; empty for all")
	asJSON := flags.Bool("json", false, "print JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	p := fullPlan()
	if *quick {
		p = quickPlan()
	}
	p.only = *only
	if *rounds > 0 {
		p.rounds = *rounds
	}
	b, err := newBench(p)
	if err != nil {
		return err
	}
	defer b.Close()
	b.iceoryx = iceoryx{why: notInQuickRun}
	if *rival != "" {
		b.iceoryx = iceoryx{path: *rival}
	} else if p.rivals {
		fmt.Fprintln(progress, "building iceoryx2's side")
		b.iceoryx = buildIceoryx(ctx)
	}
	if err := b.run(ctx, func(what string) { fmt.Fprintln(progress, what) }); err != nil {
		return err
	}
	r := b.report()
	write := r.writeTable
	if *asJSON {
		write = r.writeJSON
	}
	if err := write(out); err != nil {
		return err
	}
	if r.missed() && !*quick {
		return errMissed
	}
	return nil
}
