package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/bench"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
)

const benchHelp = `Measure the performance of sharing on this host. Each figure has a floor: what the kernel and Go need for the same work
without sharedtensor, measured in turn with it in the same run. Owners are separate processes, which end with the command.

Without NAME it runs all benchmarks:
%s
The floor of ping is a round trip of 64 bytes over a bare Unix socket. The floor of attach is passing one descriptor on
request and mapping 64 MiB; for large models it is attaching a model of 1 MiB. The floor of load is a plain read of the
file into fresh memory. The floor of clients is the same number of bare connections with a goroutine each, or a ping
without them. The floor of kill is the time until the peer of a bare socket reads the end of the stream.

Models over a quarter of the available memory are left out. The file of load is in the directory for temporary files
(TMPDIR).`

func newBenchCommand() *cobra.Command {
	var quick, asJSON bool
	var names []string
	var list strings.Builder
	for _, b := range bench.All() {
		names = append(names, b.Name)
		fmt.Fprintf(&list, "  %-9s %s\n", b.Name, b.Short)
	}
	c := &cobra.Command{
		Use:   "bench [flags] [NAME...]",
		Short: "Measure the performance of sharing on this host",
		Long:  fmt.Sprintf(benchHelp, list.String()),
		Example: `  sharedtensor bench --quick
  sharedtensor bench ping attach
  sharedtensor bench --json > figures.json`,
		Args:      cobra.ArbitraryArgs,
		ValidArgs: names,
		RunE: func(c *cobra.Command, words []string) error {
			for _, word := range words {
				if !slices.Contains(names, word) {
					return cli.Usagef(c, "unknown benchmark %q (have: %s)", word, strings.Join(names, ", "))
				}
			}
			program, err := os.Executable()
			if err != nil {
				return err
			}
			o := bench.Options{Worker: []string{program, "bench", "worker"}, Limit: 5 * time.Second, MaxBytes: 4 << 30, Clients: 1000}
			if quick {
				o.Limit, o.MaxBytes = 500*time.Millisecond, 256<<20
			}
			return runBenchmarks(c, o, words, asJSON)
		},
	}
	f := c.Flags()
	f.BoolVar(&quick, "quick", false, "measure for a shorter time, with smaller models")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(&cobra.Command{ // bench starts it for owners and clients
		Use:    "worker DIR",
		Hidden: true,
		Args:   cli.Exactly("DIR"),
		RunE: func(c *cobra.Command, words []string) error {
			return bench.Work(c.Context(), c.InOrStdin(), c.OutOrStdout(), words[0])
		},
	})
	return c
}

// runBenchmarks measures the named benchmarks, or all if names is empty, and prints the figures. After a failure it
// still prints the completed measurements.
func runBenchmarks(c *cobra.Command, o bench.Options, names []string, asJSON bool) error {
	o.Stage = func(what string) { fmt.Fprintln(c.ErrOrStderr(), "measuring "+what) }
	results := []bench.Result{}
	var failed []error
	for _, b := range bench.All() {
		if len(names) > 0 && !slices.Contains(names, b.Name) {
			continue
		}
		some, err := b.Run(c.Context(), o)
		results, failed = append(results, some...), append(failed, err)
		if c.Context().Err() != nil {
			return errors.Join(append(failed, context.Cause(c.Context()))...)
		}
	}
	if asJSON {
		return errors.Join(append(failed, term.PrintJSON(c.OutOrStdout(), results))...)
	}
	t := term.NewTable(term.Column{Title: "FIGURE", Give: 1}, term.Column{Title: "VALUE", Align: term.Right}, term.Column{Title: "FLOOR", Align: term.Right},
		term.Column{Title: "RATIO", Align: term.Right})
	for _, r := range results {
		floor, ratio := "-", "-"
		if r.Floor != nil {
			floor, ratio = withUnit(*r.Floor, r.Unit), fmt.Sprintf("%.2f", *r.Ratio)
		}
		t.Add(r.Name, withUnit(r.Value, r.Unit), floor, ratio)
	}
	return errors.Join(append(failed, t.Print(c.OutOrStdout()))...)
}

// withUnit formats a value with its unit.
func withUnit(v float64, unit string) string {
	if v > 0 && v < 10 {
		return fmt.Sprintf("%.2f %s", v, unit)
	}
	return term.FormatSignificant(v) + " " + unit
}
