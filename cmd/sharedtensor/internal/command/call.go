package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// callFlags holds the flags of the commands call and submit.
type callFlags struct {
	owner *cli.OwnerFlags
	args  callArgs
	limit time.Duration
	json  bool
}

func newCallCommand() *cobra.Command {
	var o callFlags
	c := &cobra.Command{
		Use:   "call [flags] ENDPOINT [key=value...]",
		Short: "Call a function of the owner and print its result",
		Long: `Call a function of the owner and print its result. For a stream each result is printed when it arrives. An endpoint that
runs as a task shows its progress. Interrupting the command stops the function. The command holds a managed result until
it exits.

` + argsHelp,
		Example: `  sharedtensor call build_model hidden_size=128 layers=4
  sharedtensor call transform x=@input.safetensors:x scale=2
  sharedtensor call spectral_norm a=@llm:layers.0.weight steps=10 --json
  sharedtensor call lookup --in '"a key"'`,
		RunE: func(c *cobra.Command, words []string) error {
			if err := o.parse(c, words); err != nil {
				return err
			}
			return withCaller(c.Context(), o.owner, func(ctx context.Context, on *caller) error {
				return call(ctx, c, o, on, words[0])
			})
		},
	}
	o.owner = cli.AddOwnerFlags(c)
	o.args.register(c, o.owner)
	c.Flags().DurationVar(&o.limit, "limit", 0, "time limit of the function; 0 means none")
	c.Flags().BoolVar(&o.json, "json", false, "print JSON; for a stream one value per line")
	return c
}

// register adds the flags and the completion of an endpoint with arguments.
func (a *callArgs) register(c *cobra.Command, o *cli.OwnerFlags) {
	argsFlag(c, a)
	names := completeEndpoints(o, 1)
	c.ValidArgsFunction = func(c *cobra.Command, words []string, prefix string) ([]string, cobra.ShellCompDirective) {
		switch {
		case len(words) == 0:
			return names(c, words, prefix)
		case strings.Contains(prefix, "="):
			return nil, cobra.ShellCompDirectiveDefault // complete a file after the @
		}
		return missingFields(o, words, prefix), cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	}
}

// missingFields completes the fields of an endpoint that are missing from words.
func missingFields(o *cli.OwnerFlags, words []string, prefix string) []string {
	return cli.Complete(o, func(ctx context.Context, client *endpoint.Client) (keys []string, err error) {
		list, err := client.Endpoints(ctx)
		for _, e := range list {
			for _, f := range e.InFields {
				said := slices.ContainsFunc(words[1:], func(word string) bool { return strings.HasPrefix(word, f.Name+"=") })
				if e.Name == words[0] && strings.HasPrefix(f.Name, prefix) && !said {
					keys = append(keys, cli.Completion(f.Name+"=", shortType(f.Type)))
				}
			}
		}
		return keys, err
	})
}

// parse validates the command line.
func (o *callFlags) parse(c *cobra.Command, words []string) error {
	switch {
	case len(words) == 0:
		return cli.Usagef(c, "ENDPOINT is missing")
	case o.limit < 0:
		return cli.Usagef(c, "--limit %v: it must not be negative", o.limit)
	}
	return o.args.parse(c, words[1:])
}

// limited returns ctx with the time limit of the call.
func (o *callFlags) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if o.limit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, o.limit, overdue(o.limit))
}

// overdue is the error for a function that did not end in time. It matches context.DeadlineExceeded.
type overdue time.Duration

func (d overdue) Error() string {
	return fmt.Sprintf("the function did not end within %v", time.Duration(d))
}

func (d overdue) Is(target error) bool { return target == context.DeadlineExceeded }

// ended returns overdue if the call reached its time limit, which this process or the owner may detect first. Otherwise
// it returns err.
func (o *callFlags) ended(ctx context.Context, err error) error {
	deadline, limited := ctx.Deadline()
	if limited && errors.Is(err, context.DeadlineExceeded) && time.Until(deadline) < 10*time.Millisecond {
		return overdue(o.limit)
	}
	return err
}

// call finds the endpoint, builds the argument, and calls it.
func call(ctx context.Context, c *cobra.Command, o callFlags, on *caller, name string) (err error) {
	info, err := on.endpoint(ctx, name)
	if err != nil {
		return err
	}
	in, held, err := on.argument(ctx, &o.args)
	defer func() { err = errors.Join(err, held.Close()) }()
	if err != nil {
		return err
	}
	ctx, cancel := o.limited(ctx)
	defer cancel()
	out := printer{w: c.OutOrStdout(), json: o.json, lines: info.Stream, host: on.devices[0]}
	switch {
	case info.Stream:
		err = callStream(ctx, on, out, name, in)
	case info.Task:
		err = callTask(ctx, c, on, out, name, in)
	default:
		var v any
		if err = on.client.Call(ctx, name, in, &v); err == nil {
			return out.take(v)
		}
	}
	return explain(o.ended(ctx, err), info)
}

// callStream prints each result when it arrives.
func callStream(ctx context.Context, on *caller, out printer, name string, in any) error {
	for v, err := range endpoint.Stream[any](ctx, on.client, name, in) {
		if err == nil {
			err = out.take(v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// callTask makes a call and shows the progress of its task. If ctx ends first, the task is cancelled, as for any call.
func callTask(ctx context.Context, c *cobra.Command, on *caller, out printer, name string, in any) error {
	t, err := on.client.Submit(ctx, name, in)
	if err != nil {
		return err
	}
	end, err := follow(ctx, c.ErrOrStderr(), on.client, t.ID)
	if err != nil && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)) { // the owner may detect the deadline first
		ctx, cancel := on.owner.Bounded(context.WithoutCancel(ctx))
		defer cancel()
		_, stopErr := t.Cancel(ctx)
		return errors.Join(err, stopErr)
	}
	if err == nil {
		err = end.Err()
	}
	if err != nil {
		return err
	}
	var v any
	if err := t.Result(ctx, &v); err != nil {
		return err
	}
	return out.take(v)
}

// explain adds the endpoint's parameters to an error about arguments.
func explain(err error, info endpoint.EndpointInfo) error {
	if errors.Is(err, endpoint.ErrInvalid) || errors.Is(err, message.ErrEncoding) {
		return fmt.Errorf("%w; %s takes %s", err, term.Printable(info.Name), term.Printable(takes(info)))
	}
	return err
}

// endpoint returns the description of an endpoint. If there is no such endpoint, the error lists the existing ones.
func (on *caller) endpoint(ctx context.Context, name string) (endpoint.EndpointInfo, error) {
	ctx, cancel := on.owner.Bounded(ctx)
	defer cancel()
	list, err := on.client.Endpoints(ctx)
	if err != nil {
		return endpoint.EndpointInfo{}, err
	}
	for _, info := range list {
		if info.Name == name {
			return info, nil
		}
	}
	return endpoint.EndpointInfo{}, noEndpoint(name, list, on.client.Socket())
}

// noEndpoint returns the error for a name that is not in the list.
func noEndpoint(name string, list []endpoint.EndpointInfo, socket string) error {
	names := make([]string, len(list))
	for i, info := range list {
		names[i] = info.Name
	}
	return fmt.Errorf("%q: %w on %s; %s", name, endpoint.ErrNoEndpoint, socket, itHas(names))
}

func newSubmitCommand() *cobra.Command {
	var o callFlags
	c := &cobra.Command{
		Use:   "submit [flags] ENDPOINT [key=value...]",
		Short: "Start a call as a task and print the task's id",
		Long: `Start a call as a task, print its id and exit. The task continues to run. Every endpoint can run as a task, except
streams. See wait, tasks and cancel.

` + argsHelp,
		Example: `  sharedtensor submit build_model hidden_size=128 layers=4
  sharedtensor wait --result $(sharedtensor submit build_model hidden_size=128 layers=4)`,
		RunE: func(c *cobra.Command, words []string) error {
			if err := o.parse(c, words); err != nil {
				return err
			}
			return withCaller(c.Context(), o.owner, func(ctx context.Context, on *caller) error {
				return submit(ctx, c, o, on, words[0])
			})
		},
	}
	o.owner = cli.AddOwnerFlags(c)
	o.args.register(c, o.owner)
	c.Flags().BoolVar(&o.json, "json", false, "print the task as JSON")
	return c
}

func submit(ctx context.Context, c *cobra.Command, o callFlags, on *caller, name string) (err error) {
	info, err := on.endpoint(ctx, name)
	if err != nil {
		return err
	}
	in, held, err := on.argument(ctx, &o.args)
	defer func() { err = errors.Join(err, held.Close()) }()
	if err != nil {
		return err
	}
	ctx, cancel := on.owner.Bounded(ctx)
	defer cancel()
	t, err := on.client.Submit(ctx, name, in)
	if err != nil {
		return explain(err, info)
	}
	if o.json {
		return term.PrintJSON(c.OutOrStdout(), t.Submitted)
	}
	_, err = fmt.Fprintln(c.OutOrStdout(), term.Printable(t.ID))
	return err
}
