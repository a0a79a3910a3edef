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
	"github.com/sharedtensor/sharedtensor/task"
)

// findTask returns the task with the given id or unambiguous prefix of an id.
func findTask(ctx context.Context, o *cli.OwnerFlags, client *endpoint.Client, word string) (endpoint.TaskInfo, error) {
	tasks, err := askTasks(ctx, o, client, endpoint.TaskFilter{})
	if err != nil {
		return endpoint.TaskInfo{}, err
	}
	tasks = slices.DeleteFunc(tasks, func(t endpoint.TaskInfo) bool { return !strings.HasPrefix(t.ID, word) })
	switch {
	case len(tasks) == 0 || word == "":
		return endpoint.TaskInfo{}, fmt.Errorf("%q: %w on %s", word, task.ErrNotFound, client.Socket())
	case len(tasks) > 1 && tasks[0].ID != word:
		return endpoint.TaskInfo{}, fmt.Errorf("%q is ambiguous: it is the prefix of %s", word, term.Count(len(tasks), "task"))
	}
	return tasks[0], nil
}

// completeTasks completes task ids for the first limit positional arguments, or for all if limit is 0. If unfinished is
// set, it skips tasks that have ended.
func completeTasks(o *cli.OwnerFlags, limit int, unfinished bool) cobra.CompletionFunc {
	return func(_ *cobra.Command, words []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if limit > 0 && len(words) >= limit {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return cli.Complete(o, func(ctx context.Context, client *endpoint.Client) (ids []string, err error) {
			tasks, err := client.Tasks(ctx, endpoint.TaskFilter{})
			for _, t := range tasks {
				if strings.HasPrefix(t.ID, prefix) && !(unfinished && t.State.Terminal()) {
					ids = append(ids, cli.Completion(t.ID, fmt.Sprintf("%s %s, %s", t.Endpoint, t.State, term.FormatAge(time.Since(t.CreatedAt)))))
				}
			}
			return ids, err
		}), cobra.ShellCompDirectiveNoFileComp
	}
}

func newCancelCommand() *cobra.Command {
	var o *cli.OwnerFlags
	c := &cobra.Command{
		Use:   "cancel [flags] ID...",
		Short: "Cancel tasks",
		Long: `Cancel tasks. A pending task ends at once; the function of a running task is requested to stop. The command fails if a
task has already ended. An unambiguous prefix of an id is enough.`,
		Example: "  sharedtensor cancel 3f2a91",
		RunE: func(c *cobra.Command, ids []string) error {
			if len(ids) == 0 {
				return cli.Usagef(c, "ID is missing")
			}
			return o.WithOwner(c.Context(), func(ctx context.Context, client *endpoint.Client) error {
				return forEach(ids, func(id string) error { return cancelTask(ctx, c, o, client, id) })
			})
		},
	}
	o = cli.AddOwnerFlags(c)
	c.ValidArgsFunction = completeTasks(o, 0, true)
	return c
}

func cancelTask(ctx context.Context, c *cobra.Command, o *cli.OwnerFlags, client *endpoint.Client, word string) error {
	t, err := findTask(ctx, o, client, word)
	if err != nil {
		return err
	}
	ctx, stop := o.Bounded(ctx)
	defer stop()
	could, err := client.Task(t.ID).Cancel(ctx)
	if err != nil {
		return err
	}
	if !could {
		if t, err = client.Task(t.ID).Info(ctx); err != nil {
			return err
		}
		return fmt.Errorf("task %s has already ended: it is %s", shortID(t.ID), t.State)
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "cancelled %s %s\n", shortID(t.ID), term.Printable(t.Endpoint))
	return err
}
