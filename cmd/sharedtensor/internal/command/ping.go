package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/bench"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// pingFlags holds the flags of the command ping.
type pingFlags struct {
	owner    *cli.OwnerFlags
	count    int
	interval time.Duration
	json     bool
}

func newPingCommand() *cobra.Command {
	var o pingFlags
	c := &cobra.Command{
		Use:   "ping [flags]",
		Short: "Measure the owner's response time",
		Long: `Measure the round trip of a request to the owner. With an interval of 0, requests are sent without a pause and only the
summary is printed.`,
		Example: `  sharedtensor ping
  sharedtensor ping -c 10000 -i 0
  sharedtensor ping -c 0            # until it is interrupted`,
		Args: cli.Exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			if o.count < 0 || o.interval < 0 {
				return cli.Usagef(c, "--count and --interval must not be negative")
			}
			return o.owner.WithOwner(c.Context(), func(ctx context.Context, client *endpoint.Client) error {
				return ping(ctx, c, o, client)
			})
		},
	}
	o.owner = cli.AddOwnerFlags(c)
	f := c.Flags()
	f.IntVarP(&o.count, "count", "c", 5, "number of requests; 0 means until interrupted")
	f.DurationVarP(&o.interval, "interval", "i", 200*time.Millisecond, "time between two requests")
	f.BoolVar(&o.json, "json", false, "print JSON; durations are in nanoseconds")
	return c
}

// maxSamples limits the samples that an endless ping keeps. Beyond it, the oldest are overwritten.
const maxSamples = 1 << 20

// ping sends requests repeatedly and prints the latencies.
func ping(ctx context.Context, c *cobra.Command, o pingFlags, client *endpoint.Client) error {
	quiet := o.json || o.interval == 0
	var samples []time.Duration
	for n := 0; o.count == 0 || n < o.count; n++ {
		if n > 0 && !pause(ctx, o.interval) {
			break
		}
		d, err := pingOnce(ctx, o.owner, client)
		if errors.Is(err, context.Canceled) {
			break
		}
		if err != nil {
			return err
		}
		if len(samples) < maxSamples {
			samples = append(samples, d)
		} else {
			samples[n%maxSamples] = d
		}
		if !quiet {
			if _, err := fmt.Fprintf(c.OutOrStdout(), "answer from %s: %s\n", client.Socket(), term.FormatDuration(d)); err != nil {
				return err
			}
		}
	}
	if len(samples) == 0 {
		return context.Cause(ctx)
	}
	stats := summarize(samples)
	if o.json {
		return term.PrintJSON(c.OutOrStdout(), stats)
	}
	_, err := fmt.Fprintln(c.OutOrStdout(), stats)
	return err
}

func pingOnce(ctx context.Context, o *cli.OwnerFlags, client *endpoint.Client) (time.Duration, error) {
	ctx, cancel := o.Bounded(ctx)
	defer cancel()
	return client.Ping(ctx)
}

// pause waits for d. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	if d == 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// latencies summarizes response times.
type latencies struct {
	Count int           `json:"count"`
	Min   time.Duration `json:"min_ns"`
	Mean  time.Duration `json:"mean_ns"`
	P50   time.Duration `json:"p50_ns"`
	P90   time.Duration `json:"p90_ns"`
	P99   time.Duration `json:"p99_ns"`
	Max   time.Duration `json:"max_ns"`
}

// summarize sorts the samples, which must not be empty. Percentiles use the nearest rank, so each one is a measured
// time.
func summarize(samples []time.Duration) latencies {
	slices.Sort(samples)
	rank := func(part float64) time.Duration { return bench.Quantile(samples, part) }
	var sum time.Duration
	for _, d := range samples {
		sum += d
	}
	n := len(samples)
	return latencies{
		Count: n, Min: samples[0], Mean: sum / time.Duration(n), P50: rank(0.5), P90: rank(0.9), P99: rank(0.99), Max: samples[n-1],
	}
}

// String returns the summary as one line.
func (l latencies) String() string {
	return fmt.Sprintf("%s: min %s, mean %s, p50 %s, p90 %s, p99 %s, max %s", term.Count(l.Count, "answer"), term.FormatDuration(l.Min),
		term.FormatDuration(l.Mean), term.FormatDuration(l.P50), term.FormatDuration(l.P90), term.FormatDuration(l.P99), term.FormatDuration(l.Max))
}
