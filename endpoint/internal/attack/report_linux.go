package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// printTable prints the measurements, then the responses to attackers and the errors of honest clients.
func printTable(out io.Writer, rows []measured) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "attack\tbefore\tpeak\tafter\theap after\tping p50\tp99\tmax\tserved\t")
	for _, r := range rows {
		switch {
		case r.Skipped != "":
			fmt.Fprintf(w, "%s\tnot here\t\t\t\t\t\t\t\t\n", r.Attack)
			continue
		case r.Honest == nil:
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t\t\t\t\t\n", r.Attack, mib(r.Before.Memory), mib(r.Peak), r.end(mib(r.After.Memory)), mib(r.After.Heap))
			continue
		}
		h := r.Honest
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%.2f ms\t%.1f ms\t%.0f ms\t%d of %d\t\n", r.Attack, mib(r.Before.Memory), mib(r.Peak),
			r.end(mib(r.After.Memory)), mib(r.After.Heap), h.P50, h.P99, h.Max, h.Served, h.Visits)
	}
	_ = w.Flush() // best effort: out is a terminal or a file
	for _, r := range rows {
		fmt.Fprintf(out, "\n%s: %s\n", r.Attack, r.What)
		for _, line := range []string{r.Skipped, r.Failure} {
			if line != "" {
				fmt.Fprintf(out, "  ! %s\n", line)
			}
		}
		for _, line := range r.Heard {
			fmt.Fprintf(out, "  attacker: %s\n", line)
		}
		if r.Honest != nil {
			for _, line := range r.Honest.Errors {
				fmt.Fprintf(out, "  honest client: %s\n", line)
			}
		}
	}
}

// end returns has, or the word for an owner that has ended.
func (r *measured) end(has string) string {
	if r.Ended {
		return "ended"
	}
	return has
}

func mib(n int64) string { return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20)) }
