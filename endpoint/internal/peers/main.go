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

// notInQuickRun is why rows beside iceoryx2 have no ratio in a quick run: its program takes minutes to build.
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

// run is the program. Figures go to out, progress to progress.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.SetOutput(progress)
	quick := flags.Bool("quick", false, "measure too little to mean anything, to see that it works")
	rounds := flags.Int("rounds", 0, "how often every peer has its turn, 0 for as often as is usual")
	rival := flags.String("iceoryx2", "", "the program in the folder iceoryx2, built before; it is built otherwise")
	only := flags.String("only", "", "measure one of calls, results, attach, arguments, publish, switch, clients, load; empty for all")
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
