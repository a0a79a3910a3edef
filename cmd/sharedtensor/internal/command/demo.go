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

const demoHelp = `Show on this host what sharing a model in place means, with real processes.

One process loads the model and owns it; three others attach it without a copy and compute with it where it
is. Then one of them is killed, a second version is published beside the first, the owner is killed, and
another takes its place, while the rest goes on. What each process takes is what the kernel says.

FILE is a .safetensors file, a model.safetensors.index.json, or a directory that holds either; nothing is written
to it. Without FILE the demo makes a small network. The memory has to hold the model once, and a second time
for the second version, which is left out otherwise.

Nothing is left when it ends, and it meets no other owner: its socket is in a directory of its own. The exit status
is 0 only if all processes agreed, no byte was there twice, and everything came back.`

// demoFlags are the flags of the command demo.
type demoFlags struct {
	size string
	json *bool
}

func newDemoCommand() *cobra.Command {
	var o demoFlags
	c := &cobra.Command{
		Use:   "demo [flags] [FILE]",
		Short: "Show with real processes that a model is there once, and stays",
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
	c.Flags().StringVar(&o.size, "size", term.FormatBytes(demonet.DefaultBytes), "size of the model that is made where no FILE is given")
	_ = c.RegisterFlagCompletionFunc("size", cobra.FixedCompletions([]string{"4MiB", "64MiB", "1GiB"}, cobra.ShellCompDirectiveNoFileComp))
	o.json = cli.JSONFlag(c)
	return c
}

// options turns the command line into what the demo takes.
func (o *demoFlags) options(c *cobra.Command, words []string) (demo.Options, error) {
	program, err := os.Executable()
	if err != nil {
		return demo.Options{}, err
	}
	opts := demo.Options{Worker: []string{program, demoProcessName}}
	if len(words) == 1 {
		if c.Flags().Changed("size") {
			return opts, cli.Usagef(c, "--size is for a model that the demo makes, not for a FILE")
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

// runDemo runs the demo, and tells of each step as it happens or, with JSON, of all of it at the end.
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

// demoProcessName is the hidden command that the demo's processes run.
const demoProcessName = "demo-process"

func newDemoProcessCommand() *cobra.Command {
	return &cobra.Command{
		Use:    demoProcessName + " ROLE DIR",
		Short:  "A process of the command demo, which starts it",
		Hidden: true,
		Args:   cli.Exactly("ROLE", "DIR"),
		RunE: func(c *cobra.Command, words []string) error {
			return demo.Work(c.Context(), c.InOrStdin(), c.OutOrStdout(), words[0], words[1])
		},
	}
}
