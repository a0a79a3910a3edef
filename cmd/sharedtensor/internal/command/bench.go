package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/bench"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
)

const benchHelp = `Measure the performance of sharing on this host. Each figure has a floor: what the kernel and Go need for the same work
without sharedtensor, measured in turn with it in the same run. Owners and clients are separate processes, which end with
the command.

Without NAME it runs all benchmarks:
%s
The floor of ping is a round trip of 64 bytes over a bare Unix socket. The floor of attach is passing one descriptor on
request and mapping 64 MiB; for large models it is attaching a model of 1 MiB. The floor of load is a plain read of the
file into fresh memory. The floor of clients is the same number of bare connections with a goroutine each, or a ping
without them. The floor of kill is the time until the peer of a bare socket reads the end of the stream.

A missed target is reported, but is not a failure of the command, because other programs on the host may cause it.
In JSON a target is a text such as "ratio <= 1.3" or "value <= 2000", and missing values are null.`

// benchFlags holds the flags of the command bench.
type benchFlags struct {
	quick, json bool
	dir         string
}

func newBenchCommand() *cobra.Command {
	var o benchFlags
	var names []string
	var list strings.Builder
	for _, b := range bench.All() {
		names = append(names, b.Name+"\t"+b.Short)
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
			chosen, err := chooseBenchmarks(c, words)
			if err != nil {
				return err
			}
			return runBenchmarks(c, o, chosen)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.quick, "quick", false, "measure for about 15 seconds instead of two minutes, with smaller models")
	f.BoolVar(&o.json, "json", false, "print JSON")
	f.StringVar(&o.dir, "dir", "", "directory for a temporary file of 1 GiB (default: the system's directory for temporary files)")
	c.AddCommand(newBenchWorkerCommand())
	return c
}

// newBenchWorkerCommand returns the hidden command that bench starts for its owners and clients.
func newBenchWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "worker",
		Hidden: true,
		Args:   cli.Exactly(),
		RunE:   func(c *cobra.Command, _ []string) error { return bench.Work(c.InOrStdin(), c.OutOrStdout()) },
	}
}

// benchWorker returns a command that starts this program as a worker.
func benchWorker(ctx context.Context) (*exec.Cmd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, program, "bench", "worker"), nil
}

// chooseBenchmarks returns the named benchmarks, or all if names is empty.
func chooseBenchmarks(c *cobra.Command, names []string) ([]bench.Benchmark, error) {
	all := bench.All()
	if len(names) == 0 {
		return all, nil
	}
	var known []string
	for _, b := range all {
		known = append(known, b.Name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, cli.Usagef(c, "unknown benchmark %q (have: %s)", name, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(all, func(b bench.Benchmark) bool { return !slices.Contains(names, b.Name) }), nil
}

// runBenchmarks measures and prints. After a failure it still prints the completed measurements.
func runBenchmarks(c *cobra.Command, o benchFlags, chosen []bench.Benchmark) error {
	progress := stages{w: c.ErrOrStderr(), terminal: term.IsTerminal(c.ErrOrStderr()), total: len(chosen)}
	options := bench.Options{Worker: benchWorker, Dir: o.dir, Stage: progress.stage, Note: progress.note}
	if o.quick {
		options.Effort = bench.Quick
	}
	results := []bench.Result{}
	var failed []error
	for i, b := range chosen {
		progress.number = i + 1
		some, err := b.Run(c.Context(), options)
		results = append(results, some...)
		if err != nil {
			failed = append(failed, err)
		}
		if c.Context().Err() != nil {
			break
		}
	}
	progress.end()
	if len(results) > 0 || len(failed) == 0 {
		failed = append(failed, printFigures(c.OutOrStdout(), results, o.json))
	}
	return errors.Join(failed...)
}

// printFigures prints the results.
func printFigures(w io.Writer, results []bench.Result, asJSON bool) error {
	if asJSON {
		return term.PrintJSON(w, results)
	}
	t := term.NewTable(term.Column{Title: "FIGURE", Give: 1}, term.Column{Title: "VALUE", Align: term.Right}, term.Column{Title: "FLOOR", Align: term.Right},
		term.Column{Title: "RATIO", Align: term.Right}, term.Column{Title: "TARGET", Align: term.Right}, term.Column{Title: "OK"})
	pinged := false
	for _, r := range results {
		pinged = pinged || strings.HasPrefix(r.Name, "ping-p")
		t.Add(figureCells(r)...)
	}
	if err := t.Print(w); err != nil {
		return err
	}
	if pinged {
		fmt.Fprintf(w, "\nFor comparison: %s was the median ping of the Python original, on two noisy cores.\n", pythonPing)
	}
	return nil
}

// pythonPing was measured with the Python implementation, which opens a connection and starts a thread for each
// request.
const pythonPing = "174 µs"

// figureCells returns a result as a table row.
func figureCells(r bench.Result) []string {
	cells := []string{r.Name, withUnit(r.Value, r.Unit), "-", "-", "-", "-"}
	if r.Floor != nil {
		cells[2] = withUnit(*r.Floor, r.Unit)
	}
	if r.Ratio != nil {
		cells[3] = fmt.Sprintf("%.2f", *r.Ratio)
	}
	if r.Target == nil {
		return cells
	}
	sign := "≤ "
	if r.Target.AtLeast {
		sign = "≥ "
	}
	if r.Target.Of == bench.Ratio {
		cells[4] = fmt.Sprintf("%s%.2f", sign, r.Target.Limit)
	} else {
		cells[4] = sign + withUnit(r.Target.Limit, r.Unit)
	}
	cells[5] = "no"
	if r.OK {
		cells[5] = "yes"
	}
	return cells
}

// withUnit formats a value with its unit.
func withUnit(v float64, unit string) string {
	if v > 0 && v < 10 {
		return fmt.Sprintf("%.2f %s", v, unit)
	}
	return term.FormatSignificant(v) + " " + unit
}

// stages shows what is being measured: on one line of a terminal, otherwise on a line for each stage. It writes nothing
// during a measurement.
type stages struct {
	w             io.Writer
	terminal      bool
	number, total int
}

func (s *stages) stage(what string) {
	text := fmt.Sprintf("measuring %d of %d: %s", s.number, s.total, what)
	if s.terminal {
		fmt.Fprint(s.w, term.ClearLine+text)
	} else {
		fmt.Fprintln(s.w, text)
	}
}

// note prints a permanent line.
func (s *stages) note(text string) {
	s.end()
	fmt.Fprintln(s.w, text)
}

// end clears the line.
func (s *stages) end() {
	if s.terminal {
		fmt.Fprint(s.w, term.ClearLine)
	}
}
