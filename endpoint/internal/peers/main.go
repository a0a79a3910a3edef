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
	asJSON := flags.Bool("json", false, "print JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	p := fullPlan()
	if *quick {
		p = quickPlan()
	}
	b, err := newBench(p)
	if err != nil {
		return err
	}
	defer b.Close()
	if err := b.run(ctx, func(what string) { fmt.Fprintln(progress, what) }); err != nil {
		return err
	}
	if *asJSON {
		return b.report().writeJSON(out)
	}
	return b.report().writeTable(out)
}
