package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// forEach calls do for each word, also after a failure, and joins the errors.
func forEach(words []string, do func(word string) error) error {
	var errs []error
	for _, word := range words {
		errs = append(errs, do(word))
	}
	return errors.Join(errs...)
}

// releaseFlags holds the flags of the command release.
type releaseFlags struct {
	owner       *cli.OwnerFlags
	force, json bool
}

func newReleaseCommand() *cobra.Command {
	var o releaseFlags
	c := &cobra.Command{
		Use:   "release [flags] --force ID...",
		Short: "Remove managed objects from their holders",
		Long: `Remove managed objects from all their holders, and print who held them. The owner frees the memory. Memory that a holder has
mapped stays valid until the holder closes it, but its references become stale, and it is notified of the process that removed
the object. The next call of the endpoint creates a new object. Only the owner's user and root may do this.

A reference is released automatically when its holder closes it or disconnects. Without --force the command therefore
removes nothing: it fails and lists the holders. To create a new object on the next call and leave the old one to its
holders, use invalidate. An unambiguous prefix of an id is enough.`,
		Example: "  sharedtensor release 5d41402a            # who holds it\n  sharedtensor release --force 5d41402a",
		RunE: func(c *cobra.Command, ids []string) error {
			if len(ids) == 0 {
				return cli.Usagef(c, "ID is missing")
			}
			return o.owner.WithOwner(c.Context(), func(ctx context.Context, client *endpoint.Client) error {
				ctx, cancel := o.owner.Bounded(ctx)
				defer cancel()
				return release(ctx, c, o, client, ids)
			})
		},
	}
	o.owner = cli.AddOwnerFlags(c)
	c.ValidArgsFunction = completeObjects(o.owner)
	c.Flags().BoolVarP(&o.force, "force", "f", false, "remove the objects from their holders")
	c.Flags().BoolVar(&o.json, "json", false, "print the removed objects and their holders as JSON")
	return c
}

// release removes objects, or reports for each one why it cannot be removed.
func release(ctx context.Context, c *cobra.Command, o releaseFlags, client *endpoint.Client, words []string) error {
	list, err := client.Objects(ctx)
	if err != nil {
		return err
	}
	gone := []endpoint.ObjectInfo{}
	err = forEach(words, func(word string) error {
		object, err := findObject(list, word)
		switch {
		case err != nil:
			return err
		case object == nil:
			return fmt.Errorf("object %q: %w on %s", word, endpoint.ErrStale, client.Socket())
		case !o.force:
			return fmt.Errorf("object %s of %s has %s, held by %s: --force removes it",
				object.ID, term.Printable(object.Endpoint), term.Count(int(object.Refs), "reference"), term.Printable(heldBy(*object)))
		}
		was, err := client.Destroy(ctx, object.ID)
		if err != nil {
			return err
		}
		gone = append(gone, was)
		if o.json {
			return nil
		}
		_, err = fmt.Fprintf(c.OutOrStdout(), "released %s of %s, %s, which was held by %s\n",
			term.Printable(was.ID), term.Printable(was.Endpoint), term.FormatBytes(int64(was.Bytes)), term.Printable(heldBy(was)))
		return err
	})
	if o.json {
		err = errors.Join(err, term.PrintJSON(c.OutOrStdout(), gone))
	}
	return err
}

// invalidateFlags holds the flags of the command invalidate.
type invalidateFlags struct {
	owner *cli.OwnerFlags
	args  callArgs
	json  bool
}

func newInvalidateCommand() *cobra.Command {
	var o invalidateFlags
	c := &cobra.Command{
		Use:   "invalidate [flags] ENDPOINT [key=value...]",
		Short: "Drop cached results of an endpoint",
		Long: `Drop the cached result of one call, or without arguments all cached results of an endpoint. This includes results that
are being computed: later calls start a new computation. Clients that already have a result keep it.

` + argsHelp,
		Example: `  sharedtensor invalidate build_model
  sharedtensor invalidate build_model hidden_size=128 layers=4`,
		RunE: func(c *cobra.Command, words []string) error {
			if len(words) == 0 {
				return cli.Usagef(c, "ENDPOINT is missing")
			}
			if err := o.args.parse(c, words[1:]); err != nil {
				return err
			}
			return withCaller(c.Context(), o.owner, func(ctx context.Context, on *caller) error {
				return invalidate(ctx, c, o, on, words[0])
			})
		},
	}
	o.owner = cli.AddOwnerFlags(c)
	o.args.register(c, o.owner)
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return c
}

// invalidate drops cached results and prints their number.
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
	ctx, cancel := on.owner.Bounded(ctx)
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
		return term.PrintJSON(c.OutOrStdout(), map[string]any{"endpoint": name, "dropped": n})
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "dropped %s of %s\n", term.Count(n, "result"), term.Printable(name))
	return err
}
