package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// watchFlags holds the flags of the command watch.
type watchFlags struct {
	owner *cli.OwnerFlags
	count int
	json  bool
}

func newWatchCommand() *cobra.Command {
	var o watchFlags
	c := &cobra.Command{
		Use:   "watch [flags] [NAME...]",
		Short: "Print events of names, one per line",
		Long: `Print events of the given names, or of all names, until interrupted: first the currently published versions, then every new
version and every withdrawal. If the owner disappears, that is an event too, and watching continues with the next owner on
the same socket. A slow reader may miss intermediate versions, but not the newest.`,
		Example: `  sharedtensor watch
  sharedtensor watch llm --json
  sharedtensor watch llm -n 1    # ends when llm is published`,
		RunE: func(c *cobra.Command, names []string) error {
			if o.count < 0 {
				return cli.Usagef(c, "--count %d: it must be 0 or more", o.count)
			}
			return o.owner.WithOwner(c.Context(), func(ctx context.Context, client *endpoint.Client) error {
				return watch(ctx, c.OutOrStdout(), o, client, names)
			})
		},
	}
	o.owner = cli.AddOwnerFlags(c)
	c.ValidArgsFunction = cli.CompleteNames(o.owner, 0)
	c.Flags().IntVarP(&o.count, "count", "n", 0, "exit after this many events; 0 means never")
	c.Flags().BoolVar(&o.json, "json", false, "print one JSON object per line")
	return c
}

// watchEvent is the JSON form of an event.
type watchEvent struct {
	Time    time.Time `json:"time"`
	Event   string    `json:"event"`
	Name    string    `json:"name,omitempty"`
	Version uint64    `json:"version,omitempty"`
	Owner   string    `json:"owner"`
}

// watch prints events. It returns nil when ctx ends, because that is the usual end of watching.
func watch(ctx context.Context, out io.Writer, o watchFlags, client *endpoint.Client, names []string) error {
	w, err := startWatch(ctx, o.owner, client, names)
	if err != nil {
		return err
	}
	defer w.Close()
	told := 0
	for e, err := range w.Events(ctx) {
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := printEvent(out, e, time.Now(), o.json); err != nil {
			return err
		}
		if told++; told == o.count {
			return nil
		}
	}
	return nil
}

func startWatch(ctx context.Context, o *cli.OwnerFlags, client *endpoint.Client, names []string) (*endpoint.Watcher, error) {
	ctx, cancel := o.Bounded(ctx)
	defer cancel()
	return client.Watch(ctx, names...)
}

// printEvent prints an event as one line.
func printEvent(out io.Writer, e endpoint.Event, at time.Time, asJSON bool) error {
	if asJSON {
		return term.PrintJSONLine(out, watchEvent{
			Time: at, Event: strings.ReplaceAll(e.Kind.String(), " ", "-"), Name: e.Name, Version: e.Version, Owner: e.Server,
		})
	}
	line := at.Format("15:04:05.000") + " " + e.Kind.String()
	if e.Name != "" {
		line += fmt.Sprintf(" %s version %d", term.Printable(e.Name), e.Version)
	}
	_, err := fmt.Fprintln(out, line)
	return err
}
