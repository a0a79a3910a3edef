package command

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// placeDeviceFlag adds --device for a placement to a command.
func placeDeviceFlag(c *cobra.Command, device *string, usage string) {
	c.Flags().StringVar(device, "device", "", usage)
	_ = c.RegisterFlagCompletionFunc("device", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{"host\tshared memory of this host", "cuda:0\tthe first GPU"}, cobra.ShellCompDirectiveNoFileComp
	})
}

func newPlaceCommand() *cobra.Command {
	var owner *cli.OwnerFlags
	var device string
	var version uint64
	c := &cobra.Command{
		Use:   "place [flags] NAME --device DEVICE",
		Short: "Have a model copied to a device before it is needed",
		Long: `Attach a model on a device and release it. The owner copies the model there if it is not there yet, and keeps the copy for
the time that serve --place sets. A process that attaches the model on the device meanwhile does not wait. The owner makes
copies only on the devices of serve --place.`,
		Example: "  sharedtensor place llm --device cuda:0",
		Args:    cli.Exactly("NAME"),
		RunE: func(c *cobra.Command, words []string) error {
			if device == "" {
				return cli.Usagef(c, "--device DEVICE is missing")
			}
			start := time.Now()
			return withModel(c.Context(), owner, words[0], version, device, func(h *endpoint.Handle) error {
				sd := h.StateDict()
				_, err := fmt.Fprintf(c.OutOrStdout(), "placed %s version %d on %s: %s, %s in %s\n", term.Printable(words[0]), h.Version(), device,
					term.Count(sd.Len(), "tensor"), term.FormatBytes(sd.Bytes()), term.FormatDuration(time.Since(start)))
				return err
			})
		},
	}
	owner = cli.AddOwnerFlags(c)
	c.ValidArgsFunction = cli.CompleteNames(owner, 1)
	placeDeviceFlag(c, &device, "device for the copy: host or cuda:N")
	c.Flags().Uint64Var(&version, "version", 0, "version to copy; 0 means the newest")
	return c
}
