package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// forEach does something for each word and joins what went wrong: one that fails does not stop the others.
func forEach(words []string, do func(word string) error) error {
	var errs []error
	for _, word := range words {
		errs = append(errs, do(word))
	}
	return errors.Join(errs...)
}

func newReleaseCommand() *cobra.Command {
	var o *ownerFlags
	c := &cobra.Command{
		Use:   "release [flags] ID...",
		Short: "Give references to managed objects back",
		Long: `Give one reference to each of some managed objects back. A reference belongs to the connection that got it, and goes back
by itself when that ends; nobody gives back what is another's. So this fails for an object that others hold, and says
how many references there are: end their processes to free it. To have the next call make a new object, use
invalidate.`,
		Example: "  sharedtensor release 5d41402abc4b2a76b9719d911017c592",
		RunE: func(c *cobra.Command, ids []string) error {
			if len(ids) == 0 {
				return usagef(c, "ID is missing")
			}
			return o.withOwner(c.Context(), func(ctx context.Context, client *endpoint.Client) error {
				ctx, cancel := o.bounded(ctx)
				defer cancel()
				return release(ctx, c, client, ids)
			})
		},
	}
	o = addOwnerFlags(c)
	return c
}

// release gives back what can be, and says of the rest why not.
func release(ctx context.Context, c *cobra.Command, client *endpoint.Client, ids []string) error {
	released, err := client.ReleaseMany(ctx, ids...)
	if err != nil {
		return err
	}
	return forEach(ids, func(id string) error {
		if released[id] {
			_, err := fmt.Fprintf(c.OutOrStdout(), "released %s\n", printable(id))
			return err
		}
		info, err := client.ObjectInfo(ctx, id)
		if err != nil {
			return err
		}
		return fmt.Errorf("object %s of %s has %s, all of other connections", id, info.Endpoint, count(int(info.Refs), "reference"))
	})
}

// invalidateFlags are the flags of the command invalidate.
type invalidateFlags struct {
	owner *ownerFlags
	args  callArgs
	json  bool
}

func newInvalidateCommand() *cobra.Command {
	var o invalidateFlags
	c := &cobra.Command{
		Use:   "invalidate [flags] ENDPOINT [key=value...]",
		Short: "Drop cached results of an endpoint",
		Long: `Drop the cached result of one call, or without arguments all cached results of an endpoint, and those that are being made:
who calls after it gets what was begun after it. Who has a result keeps it.

` + argsHelp,
		Example: `  sharedtensor invalidate build_model
  sharedtensor invalidate build_model hidden_size=128 layers=4`,
		RunE: func(c *cobra.Command, words []string) error {
			if len(words) == 0 {
				return usagef(c, "ENDPOINT is missing")
			}
			if err := o.args.parse(c, words[1:]); err != nil {
				return err
			}
			return o.owner.withCaller(c.Context(), func(ctx context.Context, on *caller) error {
				return invalidate(ctx, c, o, on, words[0])
			})
		},
	}
	o.owner = addOwnerFlags(c)
	o.args.register(c, o.owner)
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return c
}

// invalidate drops results and says how many.
func invalidate(ctx context.Context, c *cobra.Command, o invalidateFlags, on *caller, name string) (err error) {
	info, err := on.endpoint(ctx, name)
	if err != nil {
		return err
	}
	in, held, err := on.argument(ctx, &o.args)
	defer func() { err = errors.Join(err, held.Close()) }()
	if err != nil {
		return err
	}
	ctx, cancel := on.owner.bounded(ctx)
	defer cancel()
	var n int
	if o.args.empty() {
		n, err = on.client.InvalidateEndpoint(ctx, name)
	} else {
		var was bool
		if was, err = on.client.InvalidateCall(ctx, name, in); was {
			n = 1
		}
	}
	if err != nil {
		return explain(err, info)
	}
	if o.json {
		return printJSON(c.OutOrStdout(), map[string]any{"endpoint": name, "dropped": n})
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "dropped %s of %s\n", count(n, "result"), printable(name))
	return err
}
