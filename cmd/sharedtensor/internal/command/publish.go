package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// publishFlags holds the flags of the command publish.
type publishFlags struct {
	owner   *cli.OwnerFlags
	device  string
	load    loadFlags
	digests bool
}

func newPublishCommand() *cobra.Command {
	var o publishFlags
	c := &cobra.Command{
		Use:   "publish [flags] NAME=PATH...",
		Short: "Load models and publish them at the running owner",
		Long: `Load models into shared memory and pass the memory to the running owner, which publishes it as the next version of NAME.
The memory is not copied and belongs to the owner afterwards, so it outlives this process. Readers of the previous version
keep it.`,
		Example: `  sharedtensor publish llm=step-2000.safetensors
  sharedtensor publish llm=./checkpoint vad=vad.safetensors`,
		ValidArgsFunction: completeModels,
		RunE: func(c *cobra.Command, words []string) error {
			if len(words) == 0 {
				return cli.Usagef(c, "NAME=PATH is missing")
			}
			models, err := parseModels(c, words, o.load)
			if err != nil {
				return err
			}
			return publish(c, o, models)
		},
	}
	o.owner = cli.AddOwnerFlags(c)
	cli.DeviceFlag(c, &o.device)
	o.load.add(c)
	c.Flags().BoolVar(&o.digests, "digests", false, "let the owner compute the SHA-256 of each tensor in the background")
	return c
}

// publish loads the models one after the other and passes each to the owner. It connects first, so that nothing is
// loaded without an owner.
func publish(c *cobra.Command, o publishFlags, models []modelArg) (err error) {
	if err := checkModels(models); err != nil {
		return err
	}
	dev, err := cli.OpenDevice(o.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	client, err := o.owner.DialDevice(c.Context(), dev.Info().Index, dev)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	ctx, stop, err := whileOwnerLives(c.Context(), o.owner, client, models[0].name)
	if err != nil {
		return err
	}
	defer stop()
	for _, m := range models {
		version, err := publishOne(ctx, c, o, client, dev, m)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(c.OutOrStdout(), "published %s version %d from %s\n", term.Printable(m.name), version, term.Printable(m.path)); err != nil {
			return err
		}
	}
	return nil
}

// publishOne loads a model, passes it to the owner, and unmaps it in this process.
func publishOne(ctx context.Context, c *cobra.Command, o publishFlags, client *endpoint.Client, dev driver.Device, m modelArg) (uint64, error) {
	sd, _, err := loadModel(ctx, dev, m, c.ErrOrStderr(), nil)
	if err != nil {
		return 0, err
	}
	ctx, cancel := o.owner.Bounded(ctx)
	defer cancel()
	version, err := client.Publish(ctx, m.name, sd, endpoint.PublishOptions{Source: m.source(), Digests: o.digests})
	return version, errors.Join(err, sd.Close())
}

// errOwnerGone cancels work for an owner that has ended.
var errOwnerGone = fmt.Errorf("%w any more: the owner ended", endpoint.ErrUnavailable)

// whileOwnerLives returns a context that is cancelled when the owner ends. A client reconnects automatically, but a
// request to one owner may not be meant for the next. With --wait it is, and the context is not cancelled. The caller
// calls stop.
func whileOwnerLives(ctx context.Context, o *cli.OwnerFlags, client *endpoint.Client, name string) (_ context.Context, stop func(), err error) {
	if o.Wait {
		return ctx, func() {}, nil
	}
	w, err := startWatch(ctx, o, client, []string{name})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for e, err := range w.Events(ctx) {
			if err != nil {
				return
			}
			if e.Kind == endpoint.EventOwnerLost {
				cancel(errOwnerGone)
				return
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-watched
		w.Close()
	}, nil
}

func newWithdrawCommand() *cobra.Command {
	var o *cli.OwnerFlags
	c := &cobra.Command{
		Use:   "withdraw [flags] NAME...",
		Short: "Withdraw names from the owner",
		Long: `Withdraw names from the owner. They can no longer be attached. Holders of a version are notified and keep it; its memory is
freed when the last one releases it.`,
		Example: "  sharedtensor withdraw llm",
		RunE: func(c *cobra.Command, names []string) error {
			if len(names) == 0 {
				return cli.Usagef(c, "NAME is missing")
			}
			return o.WithOwner(c.Context(), func(ctx context.Context, client *endpoint.Client) error {
				return withdraw(ctx, c, o, client, names)
			})
		},
	}
	o = cli.AddOwnerFlags(c)
	c.ValidArgsFunction = cli.CompleteNames(o, 0)
	return c
}

// withdraw removes every existing name. It fails if a name does not exist.
func withdraw(ctx context.Context, c *cobra.Command, o *cli.OwnerFlags, client *endpoint.Client, names []string) error {
	ctx, cancel := o.Bounded(ctx)
	defer cancel()
	var errs []error
	for _, name := range names {
		if err := client.Withdraw(ctx, name); err != nil {
			errs = append(errs, withPublished(ctx, client, name, err))
			continue
		}
		fmt.Fprintf(c.OutOrStdout(), "withdrew %s\n", term.Printable(name))
	}
	return errors.Join(errs...)
}
