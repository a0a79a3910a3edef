package command

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// waitFlags holds the flags of the command wait.
type waitFlags struct {
	owner        *cli.OwnerFlags
	result, json bool
}

func newWaitCommand() *cobra.Command {
	var o waitFlags
	c := &cobra.Command{
		Use:   "wait [flags] ID",
		Short: "Wait for the end of a task",
		Long: `Wait for the end of a task and show its progress. The exit status is 1 if the task failed or was cancelled. Interrupting
the command does not stop the task. An unambiguous prefix of an id is enough. With --result the result is printed. If it is
managed and this command holds the last reference, it is freed when the command exits.`,
		Example: `  sharedtensor wait 3f2a91
  sharedtensor wait --result --json 3f2a91`,
		Args: cli.Exactly("ID"),
		RunE: func(c *cobra.Command, words []string) error {
			if !o.result {
				return o.owner.WithOwner(c.Context(), func(ctx context.Context, client *endpoint.Client) error {
					_, err := waitFor(ctx, c, o, client, words[0])
					return err
				})
			}
			return withCaller(c.Context(), o.owner, func(ctx context.Context, on *caller) error {
				return waitResult(ctx, c, o, on, words[0])
			})
		},
	}
	o.owner = cli.AddOwnerFlags(c)
	c.ValidArgsFunction = completeTasks(o.owner, 1, false)
	c.Flags().BoolVarP(&o.result, "result", "r", false, "print the result")
	c.Flags().BoolVar(&o.json, "json", false, "print the task as JSON, or with --result only the result")
	return c
}

// waitFor waits for the end of a task and returns an error if it failed.
func waitFor(ctx context.Context, c *cobra.Command, o waitFlags, client *endpoint.Client, word string) (endpoint.TaskInfo, error) {
	t, err := findTask(ctx, o.owner, client, word)
	if err != nil {
		return t, err
	}
	if t, err = follow(ctx, c.ErrOrStderr(), client, t.ID); err != nil {
		return t, err
	}
	switch {
	case o.json && !o.result:
		err = term.PrintJSON(c.OutOrStdout(), t)
	case !o.json && t.Err() == nil && !o.result:
		_, err = fmt.Fprintf(c.OutOrStdout(), "%s %s completed in %s\n", shortID(t.ID), term.Printable(t.Endpoint), taskTook(t, time.Now()))
	}
	if t.Err() != nil {
		return t, t.Err()
	}
	return t, err
}

// waitResult waits for a task and prints its result.
func waitResult(ctx context.Context, c *cobra.Command, o waitFlags, on *caller, word string) error {
	t, err := waitFor(ctx, c, o, on.client, word)
	if err != nil {
		return err
	}
	ctx, cancel := on.owner.Bounded(ctx)
	defer cancel()
	var v any
	if err := on.client.Task(t.ID).Result(ctx, &v); err != nil {
		return err
	}
	return printer{w: c.OutOrStdout(), json: o.json, host: on.devices[0]}.take(v)
}

// follow waits for the end of a task and shows its progress on w, usually standard error.
func follow(ctx context.Context, w io.Writer, client *endpoint.Client, id string) (last endpoint.TaskInfo, err error) {
	m := newTaskMeter(w)
	defer m.close()
	for t, err := range client.Task(id).Events(ctx) {
		if err != nil {
			return last, err
		}
		last = t
		m.update(t)
	}
	return last, nil
}

// taskMeter shows a task's progress: on one line of a terminal, otherwise with at most one line per second.
type taskMeter struct {
	w        io.Writer
	terminal bool
	now      func() time.Time
	last     time.Time
}

func newTaskMeter(w io.Writer) *taskMeter {
	return &taskMeter{w: w, terminal: term.IsTerminal(w), now: time.Now}
}

// update shows a changed task.
func (m *taskMeter) update(t endpoint.TaskInfo) {
	every := term.PlainEvery
	if m.terminal {
		every = 100 * time.Millisecond
	}
	now := m.now()
	if t.State != endpoint.TaskRunning || now.Sub(m.last) < every || t.Done <= 0 && t.Total <= 0 && t.Message == "" {
		return
	}
	m.last = now
	text := fmt.Sprintf("%s %s: %s %s", shortID(t.ID), term.Printable(t.Endpoint), taskProgress(t), term.Printable(taskMessage(t)))
	if m.terminal {
		fmt.Fprint(m.w, term.ClearLine+term.Clip(text, max(term.TerminalWidth(m.w)-1, 20)))
	} else {
		fmt.Fprintln(m.w, text)
	}
}

// close clears the line of a terminal.
func (m *taskMeter) close() {
	if m.terminal && !m.last.IsZero() {
		fmt.Fprint(m.w, term.ClearLine)
	}
}
