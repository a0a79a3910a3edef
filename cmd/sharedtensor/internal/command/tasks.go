package command

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// taskStates lists the states of a task in chronological order.
var taskStates = []endpoint.TaskState{
	endpoint.TaskPending, endpoint.TaskRunning, endpoint.TaskCompleted, endpoint.TaskFailed, endpoint.TaskCancelled,
}

// tasksFlags holds the flags of the command tasks.
type tasksFlags struct {
	owner    *cli.OwnerFlags
	states   []string
	endpoint string
	watch    bool
	json     bool
}

func newTasksCommand() *cobra.Command {
	var o tasksFlags
	c := &cobra.Command{
		Use:   "tasks [flags]",
		Short: "List the tasks of the owner",
		Long: `List the owner's tasks, oldest first: pending, running, and finished ones that the owner still keeps. Ids are shortened;
wait and cancel accept any unambiguous prefix.

With --watch the command continues until interrupted and prints every change of state, including tasks that end
quickly. Progress is at most one line per second for each task. With --json every change and progress report is an object on one line. A slow reader
receives less progress, and if there are too many changes of state, a note that some were missed.`,
		Example: `  sharedtensor tasks
  sharedtensor tasks --state running,pending --endpoint build_model
  sharedtensor tasks --watch --json`,
		Args: cli.Exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			filter, err := o.filter(c)
			if err != nil {
				return err
			}
			return o.owner.WithOwner(c.Context(), func(ctx context.Context, client *endpoint.Client) error {
				if o.watch {
					return watchTasks(ctx, c, o, client, filter)
				}
				return listTasks(ctx, c, o, client, filter)
			})
		},
	}
	o.owner = cli.AddOwnerFlags(c)
	f := c.Flags()
	f.StringSliceVar(&o.states, "state", nil, "list only tasks in these states: "+stateNames())
	f.StringVar(&o.endpoint, "endpoint", "", "list only tasks of this endpoint")
	f.BoolVarP(&o.watch, "watch", "w", false, "continue and print changes")
	f.BoolVar(&o.json, "json", false, "print JSON; with --watch one object per line")
	_ = c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(strings.Split(stateNames(), ", "), cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("endpoint", func(c *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return completeEndpoints(o.owner, 0)(c, nil, prefix)
	})
	return c
}

func stateNames() string {
	names := make([]string, len(taskStates))
	for i, s := range taskStates {
		names[i] = string(s)
	}
	return strings.Join(names, ", ")
}

// filter returns the filter that the flags select.
func (o *tasksFlags) filter(c *cobra.Command) (endpoint.TaskFilter, error) {
	f := endpoint.TaskFilter{Endpoint: o.endpoint}
	for _, name := range o.states {
		state := endpoint.TaskState(name)
		if !slices.Contains(taskStates, state) {
			return f, cli.Usagef(c, "--state %q: use %s", name, stateNames())
		}
		f.States = append(f.States, state)
	}
	return f, nil
}

func listTasks(ctx context.Context, c *cobra.Command, o tasksFlags, client *endpoint.Client, filter endpoint.TaskFilter) error {
	tasks, err := askTasks(ctx, o.owner, client, filter)
	if err != nil {
		return err
	}
	if o.json {
		return term.PrintJSON(c.OutOrStdout(), append([]endpoint.TaskInfo{}, tasks...))
	}
	if len(tasks) == 0 {
		fmt.Fprintf(c.ErrOrStderr(), "there are no matching tasks on %s\n", client.Socket())
		return nil
	}
	return taskTable(tasks, time.Now()).Print(c.OutOrStdout())
}

func askTasks(ctx context.Context, o *cli.OwnerFlags, client *endpoint.Client, filter endpoint.TaskFilter) ([]endpoint.TaskInfo, error) {
	ctx, cancel := o.Bounded(ctx)
	defer cancel()
	return client.Tasks(ctx, filter)
}

// shortID returns the prefix of a task's id that tables show.
func shortID(id string) string { return term.Printable(id[:min(12, len(id))]) }

func taskTable(tasks []endpoint.TaskInfo, now time.Time) *term.Table {
	t := term.NewTable(term.Column{Title: "ID"}, term.Column{Title: "ENDPOINT", Give: 2}, term.Column{Title: "STATE"}, term.Column{Title: "DONE", Align: term.Right},
		term.Column{Title: "TOOK", Align: term.Right}, term.Column{Title: "AGE", Align: term.Right}, term.Column{Title: "MESSAGE", Give: 3})
	for _, task := range tasks {
		t.Add(taskCells(task, now)...)
	}
	return t
}

// taskCells returns a task as a table row.
func taskCells(t endpoint.TaskInfo, now time.Time) []string {
	return []string{
		shortID(t.ID), t.Endpoint, string(t.State), taskProgress(t), taskTook(t, now), term.FormatAge(now.Sub(t.CreatedAt)), taskMessage(t),
	}
}

// taskProgress formats a task's progress: "42%", "17" if the total is unknown, "-" if none was reported.
func taskProgress(t endpoint.TaskInfo) string {
	switch {
	case t.State == endpoint.TaskCompleted:
		return "100%"
	case t.Total > 0:
		return fmt.Sprintf("%d%%", term.Portion(t.Done, t.Total))
	case t.Done > 0:
		return fmt.Sprint(t.Done)
	}
	return "-"
}

// taskTook formats how long a task has run.
func taskTook(t endpoint.TaskInfo, now time.Time) string {
	switch {
	case t.StartedAt.IsZero():
		return "-"
	case t.FinishedAt.IsZero():
		return term.FormatDuration(max(now.Sub(t.StartedAt), 0).Round(time.Millisecond))
	}
	return term.FormatDuration(max(t.FinishedAt.Sub(t.StartedAt), 0)) // the owner's clock may have been set back
}

// taskMessage returns the reason why a task ended, or the message of its progress.
func taskMessage(t endpoint.TaskInfo) string {
	if t.Error != "" {
		// Omit what the table already shows.
		text := strings.TrimPrefix(t.Error, fmt.Sprintf("task %q (%s) ", t.Endpoint, t.ID))
		text = strings.TrimPrefix(text, "failed: ")
		return cli.OneLine(strings.TrimPrefix(text, fmt.Sprintf("endpoint %q: ", t.Endpoint)))
	}
	if t.State == endpoint.TaskRunning {
		return cli.OneLine(t.Message)
	}
	return ""
}
