package command

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/demo"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/demonet"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
)

const demoHelp = `Demonstrate on this host how a model is shared in place, with real processes.

One process loads the model and owns it. Three others attach it without a copy and compute with it in place.
Then one of them is killed, a second version is published beside the first, and the owner is killed and
replaced, while the remaining processes keep computing. Memory use is measured by the kernel.

FILE is a .safetensors file, a model.safetensors.index.json, or a directory that contains either. It is only read.
Without FILE the demo generates a small network. Memory must be large enough for the model, and for a second copy to
show the second version, which is skipped otherwise.

The demo does not affect other owners, because its socket is in a new directory. It removes all files and ends all
processes. The exit status is 0 only if all processes computed the same result, there was one copy of the model in memory,
and all references were released.`

// demoFlags holds the flags of the command demo.
type demoFlags struct {
	size string
	json *bool
}

func newDemoCommand() *cobra.Command {
	var o demoFlags
	c := &cobra.Command{
		Use:   "demo [flags] [FILE]",
		Short: "Demonstrate sharing a model in place, with real processes",
		Long:  demoHelp,
		Example: `  sharedtensor demo
  sharedtensor demo --size 1GiB
  sharedtensor demo model.safetensors`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(c *cobra.Command, words []string) error {
			opts, err := o.options(c, words)
			if err != nil {
				return err
			}
			return runDemo(c, opts, *o.json)
		},
	}
	c.Flags().StringVar(&o.size, "size", term.FormatBytes(demonet.DefaultBytes), "size of the generated model if there is no FILE")
	_ = c.RegisterFlagCompletionFunc("size", cobra.FixedCompletions([]string{"4MiB", "64MiB", "1GiB"}, cobra.ShellCompDirectiveNoFileComp))
	o.json = cli.JSONFlag(c)
	return c
}

// options converts the command line to options of the demo.
func (o *demoFlags) options(c *cobra.Command, words []string) (demo.Options, error) {
	program, err := os.Executable()
	if err != nil {
		return demo.Options{}, err
	}
	opts := demo.Options{Worker: []string{program, demoProcessName}}
	if len(words) == 1 {
		if c.Flags().Changed("size") {
			return opts, cli.Usagef(c, "--size cannot be used with FILE")
		}
		opts.Path = words[0]
		return opts, nil
	}
	if opts.Size, err = term.ParseBytes(o.size); err == nil {
		_, err = demonet.ConfigFor(opts.Size)
	}
	if err != nil {
		return opts, cli.UsageError(c, err)
	}
	return opts, nil
}

// runDemo runs the demo. It prints each step as it happens or, as JSON, the whole report at the end.
func runDemo(c *cobra.Command, opts demo.Options, asJSON bool) error {
	if asJSON {
		report, err := demo.Run(c.Context(), opts)
		return errors.Join(err, term.PrintJSON(c.OutOrStdout(), report))
	}
	n := newNarrator(c.OutOrStdout(), c.ErrOrStderr())
	opts.Step, opts.Progress = n.step, n.progress
	report, err := demo.Run(c.Context(), opts)
	n.close()
	if err != nil {
		return err
	}
	return n.summary(report)
}

// demoProcessName is the hidden command of the demo's processes.
const demoProcessName = "demo-process"

func newDemoProcessCommand() *cobra.Command {
	return &cobra.Command{
		Use:    demoProcessName + " ROLE DIR",
		Short:  "A process of the demo (internal)",
		Hidden: true,
		Args:   cli.Exactly("ROLE", "DIR"),
		RunE: func(c *cobra.Command, words []string) error {
			return demo.Work(c.Context(), c.InOrStdin(), c.OutOrStdout(), words[0], words[1])
		},
	}
}
