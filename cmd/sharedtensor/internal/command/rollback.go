package command

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

func newRollbackCommand() *cobra.Command {
	var o *cli.OwnerFlags
	var asJSON bool
	c := &cobra.Command{
		Use:   "rollback [flags] NAME [VERSION]",
		Short: "Publish the memory of a superseded version again",
		Long: `Publish the memory of a superseded version as the next version of NAME. Nothing is loaded or copied. Without VERSION it is
the newest superseded version that the owner still keeps: one with readers, or one kept by serve --retain, --retain-age or
--retain-bytes. Followers switch to the new version as to any other. A restarted owner does not load the replaced file
again until it changes.`,
		Example: `  sharedtensor rollback llm
  sharedtensor rollback llm 3`,
		RunE: func(c *cobra.Command, words []string) error {
			version, err := rollbackVersion(c, words)
			if err != nil {
				return err
			}
			return o.WithOwner(c.Context(), func(ctx context.Context, client *endpoint.Client) error {
				ctx, cancel := o.Bounded(ctx)
				defer cancel()
				number, err := client.Rollback(ctx, words[0], version)
				if err != nil {
					return withPublished(ctx, client, words[0], err)
				}
				if asJSON {
					return term.PrintJSONLine(c.OutOrStdout(), rolledBack{words[0], number})
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "published %s version %d by rollback\n", term.Printable(words[0]), number)
				return err
			})
		},
	}
	o = cli.AddOwnerFlags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.ValidArgsFunction = cli.CompleteNames(o, 1)
	return c
}

// rolledBack is the published version.
type rolledBack struct {
	Name    string `json:"name"`
	Version uint64 `json:"version"`
}

// rollbackVersion parses the second word; 0 if there is none.
func rollbackVersion(c *cobra.Command, words []string) (uint64, error) {
	if len(words) == 0 {
		return 0, cli.Usagef(c, "NAME is missing")
	}
	if len(words) == 1 {
		return 0, nil
	}
	version, err := strconv.ParseUint(words[1], 10, 64)
	if len(words) > 2 || err != nil || version == 0 {
		return 0, cli.Usagef(c, "%q: use one NAME and the number of one version", words[1:])
	}
	return version, nil
}
