package command

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

func newEndpointsCommand() *cobra.Command {
	var o *cli.OwnerFlags
	var asJSON *bool
	c := &cobra.Command{
		Use:   "endpoints [flags] [NAME...]",
		Short: "List the functions of the owner",
		Long: `List the functions of the owner: the arguments as passed to call, the Go type of the result, and how the function runs.
Fields in brackets are optional. With names, all fields of arguments and results are listed, including nested ones. A cached
endpoint returns the result of an earlier equal call. Calls are equal if their keys are, or all arguments if the endpoint has no
key. The function of an endpoint with workers runs in these processes, which offer it.`,
		Example: "  sharedtensor endpoints\n  sharedtensor endpoints build_model --json",
		RunE: func(c *cobra.Command, names []string) error {
			return o.WithOwner(c.Context(), func(ctx context.Context, client *endpoint.Client) error {
				list, err := listedEndpoints(ctx, o, client, names)
				if err != nil {
					return err
				}
				if *asJSON {
					return term.PrintJSON(c.OutOrStdout(), list)
				}
				if len(list) == 0 {
					fmt.Fprintf(c.ErrOrStderr(), "there are no endpoints on %s\n", client.Socket())
					return nil
				}
				if len(names) > 0 {
					return printEndpoints(c.OutOrStdout(), list)
				}
				return endpointTable(list).Print(c.OutOrStdout())
			})
		},
	}
	o = cli.AddOwnerFlags(c)
	asJSON = cli.JSONFlag(c)
	c.ValidArgsFunction = completeEndpoints(o, 0)
	return c
}

// listedEndpoints returns the owner's endpoints, or the named ones. It fails for an unknown name.
func listedEndpoints(ctx context.Context, o *cli.OwnerFlags, client *endpoint.Client, names []string) ([]endpoint.EndpointInfo, error) {
	ctx, cancel := o.Bounded(ctx)
	defer cancel()
	list, err := client.Endpoints(ctx)
	if err != nil || len(names) == 0 {
		return append([]endpoint.EndpointInfo{}, list...), err
	}
	for _, name := range names {
		if !slices.ContainsFunc(list, func(e endpoint.EndpointInfo) bool { return e.Name == name }) {
			return nil, noEndpoint(name, list, client.Socket())
		}
	}
	return slices.DeleteFunc(list, func(e endpoint.EndpointInfo) bool { return !slices.Contains(names, e.Name) }), nil
}

func endpointTable(list []endpoint.EndpointInfo) *term.Table {
	columns := []term.Column{{Title: "NAME", Give: 1}, {Title: "TAKES", Give: 3}, {Title: "RETURNS", Give: 3}, {Title: "OPTIONS", Give: 2}}
	offered := slices.ContainsFunc(list, func(e endpoint.EndpointInfo) bool { return len(e.Workers) > 0 })
	if offered {
		columns = append(columns, term.Column{Title: "WORKERS", Give: 2})
	}
	t := term.NewTable(columns...)
	for _, e := range list {
		cells := []string{e.Name, takes(e), shortType(e.Out), endpointOptions(e)}
		if offered {
			cells = append(cells, workerNames(e))
		}
		t.Add(cells...)
	}
	return t
}

// workerNames returns the processes that run an endpoint's function, as "label (pid), pid", or "" if the owner runs it.
func workerNames(e endpoint.EndpointInfo) string {
	words := make([]string, len(e.Workers))
	for i, w := range e.Workers {
		words[i] = strconv.Itoa(int(w.PID))
		if w.Label != "" {
			words[i] = w.Label + " (" + words[i] + ")"
		}
	}
	return strings.Join(words, ", ")
}

// takes describes the argument for call: its fields, or its type if it has none.
func takes(e endpoint.EndpointInfo) string {
	if len(e.InFields) == 0 {
		return shortType(e.In)
	}
	words := make([]string, len(e.InFields))
	for i, f := range e.InFields {
		words[i] = f.Name + "=" + shortType(f.Type)
		if f.Optional {
			words[i] = "[" + words[i] + "]"
		}
	}
	return strings.Join(words, " ")
}

// shortType returns a Go type. The two most common ones are in words.
func shortType(name string) string {
	return strings.NewReplacer("*tensor.Tensor", "tensor", "*module.StateDict", "statedict", "interface {}", "any").Replace(name)
}

// printEndpoints prints endpoints with the details of their fields.
func printEndpoints(w io.Writer, list []endpoint.EndpointInfo) error {
	t := term.NewTable(term.Column{Title: "FIELD", Give: 2}, term.Column{Title: "TYPE", Give: 1}, term.Column{Title: "NOTE", Give: 3})
	for _, e := range list {
		t.Add(e.Name, "", endpointOptions(e))
		t.Add("  takes", shortType(e.In))
		addFields(t, e.InFields, "    ")
		t.Add("  returns", shortType(e.Out))
		addFields(t, e.OutFields, "    ")
		for _, w := range e.Workers {
			t.Add("  worker", strconv.Itoa(int(w.PID)), fmt.Sprintf("%s, session %d, runs %d of %d calls", w.Label, w.Session, w.Running, w.Most))
		}
		if e.Uncached > 0 {
			t.Add("  not cached", fmt.Sprintf("%d calls", e.Uncached), "with tensors that may still be written")
		}
	}
	return t.Print(w)
}

// addFields adds a row for each field, followed by its nested fields, indented.
func addFields(t *term.Table, fields []endpoint.FieldInfo, indent string) {
	for _, f := range fields {
		note := ""
		if f.Optional {
			note = "optional"
		}
		t.Add(indent+f.Name, shortType(f.Type), note)
		addFields(t, f.Fields, indent+"  ")
	}
}

// endpointOptions describes how an endpoint runs.
func endpointOptions(e endpoint.EndpointInfo) string {
	var words []string
	add := func(is bool, word string) {
		if is {
			words = append(words, word)
		}
	}
	add(e.Task, "task")
	add(e.Managed, "managed")
	add(e.Stream, "stream")
	cached := e.Cache && !e.Stream
	add(cached && e.CacheKey == "", "cached")
	add(cached && e.CacheKey != "", "cached by "+e.CacheKey)
	add(cached && !e.SingleFlight, "no single flight")
	add(e.Serialized, "serialized")
	add(e.Writable, "writes to its arguments")
	add(e.Timeout > 0, "timeout "+term.FormatDuration(e.Timeout))
	return strings.Join(words, ", ")
}

// completeEndpoints completes endpoint names for the first limit positional arguments, or for all if limit is 0.
func completeEndpoints(o *cli.OwnerFlags, limit int) cobra.CompletionFunc {
	return func(c *cobra.Command, words []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if limit > 0 && len(words) >= limit {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return cli.Complete(o, func(ctx context.Context, client *endpoint.Client) (names []string, err error) {
			list, err := client.Endpoints(ctx)
			for _, e := range list {
				if strings.HasPrefix(e.Name, prefix) {
					names = append(names, cli.Completion(e.Name, takes(e)+" "+endpointOptions(e)))
				}
			}
			return names, err
		}), cobra.ShellCompDirectiveNoFileComp
	}
}
