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

// taskStates are the states that a task can be in, in the order in which it goes through them.
var taskStates = []endpoint.TaskState{
	endpoint.TaskPending, endpoint.TaskRunning, endpoint.TaskCompleted, endpoint.TaskFailed, endpoint.TaskCancelled,
}

// tasksFlags are the flags of the command tasks.
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
		Long: `List the tasks that the owner knows, the oldest first: those that wait and run, and finished ones as long as it keeps
them. Ids are cut; any beginning that means one task only is enough for wait and cancel.

With --watch the command goes on until it is interrupted, and tells every change of state, also of tasks that come and go
at once: on a terminal, tasks that have not ended are bars at the bottom; elsewhere each change is a line, and progress
at most one a second for each task; with --json every change, and progress as it comes, is an object on a line. Who reads
slowly is told less progress, and where even the changes of state are too many, that some were missed.`,
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
	f.BoolVarP(&o.watch, "watch", "w", false, "go on and print changes")
	f.BoolVar(&o.json, "json", false, "print JSON; with --watch one object a line")
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

// filter is what the flags select.
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
		fmt.Fprintf(c.ErrOrStderr(), "there are no such tasks on %s\n", client.Socket())
		return nil
	}
	return taskTable(tasks, time.Now()).Print(c.OutOrStdout())
}

func askTasks(ctx context.Context, o *cli.OwnerFlags, client *endpoint.Client, filter endpoint.TaskFilter) ([]endpoint.TaskInfo, error) {
	ctx, cancel := o.Bounded(ctx)
	defer cancel()
	return client.Tasks(ctx, filter)
}

// shortID is the beginning of a task's id that is shown.
func shortID(id string) string { return term.Printable(id[:min(12, len(id))]) }

func taskTable(tasks []endpoint.TaskInfo, now time.Time) *term.Table {
	t := term.NewTable(term.Column{Title: "ID"}, term.Column{Title: "ENDPOINT", Give: 2}, term.Column{Title: "STATE"}, term.Column{Title: "DONE", Align: term.Right},
		term.Column{Title: "TOOK", Align: term.Right}, term.Column{Title: "AGE", Align: term.Right}, term.Column{Title: "MESSAGE", Give: 3})
	for _, task := range tasks {
		t.Add(taskCells(task, now)...)
	}
	return t
}

// taskCells is a task as a row of a table.
func taskCells(t endpoint.TaskInfo, now time.Time) []string {
	return []string{
		shortID(t.ID), t.Endpoint, string(t.State), taskProgress(t), taskTook(t, now), term.FormatAge(now.Sub(t.CreatedAt)), taskMessage(t),
	}
}

// taskProgress is how far a task is: "42%", "17" of an unknown number, "-" where it has not said.
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

// taskTook is how long a task has run.
func taskTook(t endpoint.TaskInfo, now time.Time) string {
	switch {
	case t.StartedAt.IsZero():
		return "-"
	case t.FinishedAt.IsZero():
		return term.FormatDuration(max(now.Sub(t.StartedAt), 0).Round(time.Millisecond))
	}
	return term.FormatDuration(max(t.FinishedAt.Sub(t.StartedAt), 0)) // the owner's clock may have been set back
}

// taskMessage is why a task ended as it did, or else its progress in words.
func taskMessage(t endpoint.TaskInfo) string {
	if t.Error != "" {
		// What the table says already is left out.
		text := strings.TrimPrefix(t.Error, fmt.Sprintf("task %q (%s) ", t.Endpoint, t.ID))
		text = strings.TrimPrefix(text, "failed: ")
		return cli.OneLine(strings.TrimPrefix(text, fmt.Sprintf("endpoint %q: ", t.Endpoint)))
	}
	if t.State == endpoint.TaskRunning {
		return cli.OneLine(t.Message)
	}
	return ""
}
