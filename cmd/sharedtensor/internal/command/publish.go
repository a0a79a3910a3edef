package command

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

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
	part    string // I/N, or empty for a whole version
	key     string // of the part
}

// parsePart parses the flags of a part of a version; the zero part without them.
func (o *publishFlags) parsePart(c *cobra.Command, models int) (p endpoint.Part, err error) {
	if o.part == "" {
		if o.key != "" {
			return p, cli.Usagef(c, "--part-key needs --part")
		}
		return p, nil
	}
	index, of, _ := strings.Cut(o.part, "/")
	p.Index, err = strconv.Atoi(index)
	if err == nil {
		p.Of, err = strconv.Atoi(of)
	}
	switch {
	case err != nil || p.Index < 0 || p.Index >= p.Of:
		return p, cli.Usagef(c, "--part %q is not I/N with I from 0 to N-1: use for example 0/2 and 1/2", o.part)
	case models > 1:
		return p, cli.Usagef(c, "--part publishes one NAME=PATH, because it waits for the other parts")
	}
	p.Key = o.key
	return p, nil
}

func newPublishCommand() *cobra.Command {
	var o publishFlags
	c := &cobra.Command{
		Use:   "publish [flags] NAME=PATH...",
		Short: "Load models and publish them at the running owner",
		Long: `Load models into shared memory and pass the memory to the running owner, which publishes it as the next version of NAME.
The memory is not copied and belongs to the owner afterwards, so it outlives this process. Readers of the previous version
keep it.

With --part the model is one part of a version, such as the tensors of one rank of an engine. The command waits until all
parts are published. Then the version becomes current, for all parts at once.`,
		Example: `  sharedtensor publish llm=step-2000.safetensors
  sharedtensor publish --part 0/2 llm=rank-0.safetensors
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
			part, err := o.parsePart(c, len(models))
			if err != nil {
				return err
			}
			return publish(c, o, models, part)
		},
	}
	o.owner = cli.AddOwnerFlags(c)
	cli.DeviceFlag(c, &o.device)
	o.load.add(c)
	c.Flags().BoolVar(&o.digests, "digests", false, "let the owner compute the SHA-256 of each tensor in the background")
	c.Flags().StringVar(&o.part, "part", "", "publish part `I/N` of the version, I from 0, and wait for the others")
	c.Flags().StringVar(&o.key, "part-key", "", "join only parts with the same `text`, such as the training step")
	return c
}

// publish loads the models one after the other and passes each to the owner. It connects first, so that nothing is
// loaded without an owner.
func publish(c *cobra.Command, o publishFlags, models []modelArg, part endpoint.Part) (err error) {
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
		version, err := publishOne(ctx, c, o, client, dev, m, part)
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
func publishOne(ctx context.Context, c *cobra.Command, o publishFlags, client *endpoint.Client, dev driver.Device, m modelArg, part endpoint.Part) (uint64, error) {
	sd, _, err := loadModel(ctx, dev, m, c.ErrOrStderr(), nil)
	if err != nil {
		return 0, err
	}
	if part == (endpoint.Part{}) || c.Flags().Changed("timeout") { // the owner limits the wait for other parts
		var cancel context.CancelFunc
		ctx, cancel = o.owner.Bounded(ctx)
		defer cancel()
	}
	version, err := client.Publish(ctx, m.name, sd, endpoint.PublishOptions{Source: m.source(), Digests: o.digests, Part: part})
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
freed when the last one releases it. All versions of a name are withdrawn; rollback makes an earlier version current.`,
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
