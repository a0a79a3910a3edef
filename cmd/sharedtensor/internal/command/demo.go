package command

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/demo"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
)

const demoHelp = `Demonstrate on this host how a model is shared in place, with real processes.

One process makes or loads the model and owns it. Three others attach it without a copy and compute with it in place.
Then one of them is killed, a second version is published beside the first, and the owner is killed and
replaced, while the remaining processes keep computing. Memory use is measured by the kernel.

FILE is a .safetensors file, a model.safetensors.index.json, or a directory that contains either. It is only read.
Without FILE the demo generates a model. Memory must be large enough for two versions.

The demo does not affect other owners, because its socket is in a new directory. It removes all files and ends all
processes. The exit status is 0 only if all processes computed the same result, there was one copy of the model in memory,
and all references were released.`

func newDemoCommand() *cobra.Command {
	var size string
	c := &cobra.Command{
		Use:   "demo [flags] [FILE]",
		Short: "Demonstrate sharing a model in place, with real processes",
		Long:  demoHelp,
		Example: `  sharedtensor demo
  sharedtensor demo --size 1GiB
  sharedtensor demo model.safetensors`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(c *cobra.Command, words []string) error {
			program, err := os.Executable()
			if err != nil {
				return err
			}
			opts := demo.Options{Worker: []string{program, demoProcessName}, Out: c.OutOrStdout()}
			if len(words) == 1 {
				if c.Flags().Changed("size") {
					return cli.Usagef(c, "--size cannot be used with FILE")
				}
				opts.Path = words[0]
			} else if opts.Size, err = term.ParseBytes(size); err == nil && opts.Size == 0 {
				err = errors.New("--size must be positive")
			}
			if err != nil {
				return cli.UsageError(c, err)
			}
			return demo.Run(c.Context(), opts)
		},
	}
	c.Flags().StringVar(&size, "size", "64MiB", "size of the generated model if there is no FILE")
	return c
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
