package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// topFlags holds the flags of the command top.
type topFlags struct {
	owner      *cli.OwnerFlags
	interval   time.Duration
	once, json bool
}

// leastInterval is the minimum interval of top.
const leastInterval = 50 * time.Millisecond

func newTopCommand() *cobra.Command {
	var o topFlags
	c := &cobra.Command{
		Use:   "top [flags]",
		Short: "Watch the owner: memory, sessions, endpoints and tasks",
		Long: `Watch the owner: memory of each device by model, managed objects, cached results and task results; the processes that hold
GPU memory, also those outside sharedtensor, if the host has NVML; endpoints with their call rate, share of cached and failed
calls, and duration of uncached runs; sessions with what they hold, the owner's first; and tasks. On a terminal the view is redrawn in place: q or ctrl-C ends it, and the space bar refreshes it.
Otherwise views are printed one after the other. With --once one view is printed, after two samples an interval apart,
because rates need two. Requests of top itself are not counted. "of results in used memory" is the share of results whose memory was mapped by
both processes before, so that no page was allocated.`,
		Example: `  sharedtensor top
  sharedtensor top --interval 250ms
  sharedtensor top --once --json`,
		Args: cli.Exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			if o.interval < leastInterval {
				return cli.Usagef(c, "--interval %v: it must be at least %v", o.interval, leastInterval)
			}
			return o.owner.WithOwner(c.Context(), func(ctx context.Context, client *endpoint.Client) error {
				s := &sampler{owner: o.owner, client: client}
				if term.IsTerminal(c.OutOrStdout()) && !o.once && !o.json {
					return topLive(ctx, o, s, c.InOrStdin(), c.OutOrStdout())
				}
				return topPlain(ctx, c.OutOrStdout(), o, s)
			})
		},
	}
	o.owner = cli.AddOwnerFlags(c)
	c.Flags().DurationVarP(&o.interval, "interval", "i", time.Second, "time between two samples")
	c.Flags().BoolVar(&o.once, "once", false, "print one view and exit")
	c.Flags().BoolVar(&o.json, "json", false, "print JSON, one object per view; durations are in nanoseconds")
	return c
}

// look takes a snapshot within the time limit.
func (s *sampler) look(ctx context.Context, limit time.Duration) (*topSnapshot, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, cli.Late(limit))
	defer cancel()
	return s.take(ctx)
}

// topPlain prints one view, or one after another.
func topPlain(ctx context.Context, out io.Writer, o topFlags, s *sampler) error {
	for n := 0; ; n++ {
		now, err := s.look(ctx, o.owner.Timeout)
		if err != nil && ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if n > 0 || !o.once {
			if err := now.write(out, o); err != nil {
				return err
			}
		}
		if o.once && n > 0 {
			return nil
		}
		if !pause(ctx, o.interval) {
			if o.once {
				return context.Cause(ctx)
			}
			return nil
		}
	}
}

// write prints one view permanently.
func (t *topSnapshot) write(out io.Writer, o topFlags) error {
	switch {
	case o.json && o.once:
		return term.PrintJSON(out, t)
	case o.json:
		return term.PrintJSONLine(out, t)
	}
	width := term.TerminalWidth(out)
	if width == 0 {
		width = defaultWidth
	}
	var b strings.Builder
	for _, line := range t.view(width, 0, "") {
		b.WriteString(strings.TrimRight(line.text, " ") + "\n")
	}
	if !o.once {
		b.WriteByte('\n')
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// topLive redraws the view in place until a key or signal ends it, and restores the terminal.
func topLive(ctx context.Context, o topFlags, s *sampler, in io.Reader, out io.Writer) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shown, err := s.look(ctx, o.owner.Timeout) // before the screen is entered, so that an error is printed on the normal one
	if err != nil {
		return err
	}
	restore, err := term.Raw(in)
	if err != nil {
		return err
	}
	fmt.Fprint(out, term.EnterScreen)
	defer func() {
		fmt.Fprint(out, term.LeaveScreen)
		err = errors.Join(err, restore())
	}()
	refresh := make(chan struct{})
	go readKeys(in, refresh, cancel) // ends with the process
	ticker := time.NewTicker(o.interval)
	defer ticker.Stop()
	slowAfter := min(o.owner.Timeout, max(o.interval, time.Second)) // report a slow owner after this time
	trouble := ""
	for {
		width, height := term.TerminalSize(out)
		if width == 0 || height == 0 {
			width, height = 80, 24
		}
		if _, err := io.WriteString(out, frame(shown.view(width, height, trouble), width)); err != nil {
			return err
		}
		select {
		case <-refresh:
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		now, err := s.look(ctx, slowAfter)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			trouble = cli.OneLine(term.Printable(err.Error()))
		default:
			shown, trouble = now, ""
		}
	}
}

// readKeys reads the keyboard until it ends. The key q and ctrl-C call quit. The space bar requests a refresh.
func readKeys(in io.Reader, refresh chan<- struct{}, quit func()) {
	var b [1]byte
	for {
		if n, err := in.Read(b[:]); err != nil || n == 0 {
			return
		}
		switch b[0] {
		case 'q', 'Q', 3:
			quit()
			return
		case ' ':
			refresh <- struct{}{}
		}
	}
}

// Control sequences of ECMA-48 and of xterm, which common terminals support.
const (
	toTheTop   = "\x1b[H"
	eraseLine  = "\x1b[K"
	eraseBelow = "\x1b[J"
	reverse    = "\x1b[7m"
	normal     = "\x1b[0m"
)

// frame returns the terminal output that replaces the previous frame by lines.
func frame(lines []topLine, width int) string {
	var b strings.Builder
	b.WriteString(toTheTop)
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		switch {
		case line.heading:
			fmt.Fprintf(&b, "%s%-*s%s", reverse, width, line.text, normal)
		case utf8.RuneCountInString(line.text) < width:
			b.WriteString(line.text + eraseLine)
		default: // clearing after a full line would erase its last character
			b.WriteString(line.text)
		}
	}
	b.WriteString(eraseBelow)
	return b.String()
}
