package command

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

func newObjectsCommand() *cobra.Command {
	var o *cli.OwnerFlags
	var asJSON *bool
	c := &cobra.Command{
		Use:   "objects [flags] [ENDPOINT...]",
		Short: "List the managed objects and their holders",
		Long: `List the owner's managed objects, of the given endpoints or of all, oldest first. An object is kept until the last connection
has released its reference. USED is the time since a reference was last acquired. Ids are shortened; holders and release
accept any unambiguous prefix.`,
		Example: "  sharedtensor objects\n  sharedtensor objects build_model --json",
		RunE: func(c *cobra.Command, names []string) error {
			return o.WithOwner(c.Context(), func(ctx context.Context, client *endpoint.Client) error {
				if _, err := listedEndpoints(ctx, o, client, names); err != nil {
					return err
				}
				list, err := askObjects(ctx, o, client, names...)
				if err != nil {
					return err
				}
				if *asJSON {
					return term.PrintJSON(c.OutOrStdout(), list)
				}
				if len(list) == 0 {
					fmt.Fprintf(c.ErrOrStderr(), "there are no managed objects on %s\n", client.Socket())
					return nil
				}
				return objectTable(list, time.Now()).Print(c.OutOrStdout())
			})
		},
	}
	o = cli.AddOwnerFlags(c)
	asJSON = cli.JSONFlag(c)
	c.ValidArgsFunction = completeEndpoints(o, 0)
	return c
}

func askObjects(ctx context.Context, o *cli.OwnerFlags, client *endpoint.Client, names ...string) ([]endpoint.ObjectInfo, error) {
	ctx, cancel := o.Bounded(ctx)
	defer cancel()
	return client.Objects(ctx, names...)
}

func objectTable(list []endpoint.ObjectInfo, now time.Time) *term.Table {
	t := term.NewTable(term.Column{Title: "ID"}, term.Column{Title: "ENDPOINT", Give: 1}, term.Column{Title: "BYTES", Align: term.Right}, term.Column{Title: "DEVICE", Give: 1},
		term.Column{Title: "REFS", Align: term.Right}, term.Column{Title: "AGE", Align: term.Right}, term.Column{Title: "USED", Align: term.Right},
		term.Column{Title: "HELD BY", Give: 2}, term.Column{Title: "KEY", Give: 3})
	for _, o := range list {
		t.Add(shortID(o.ID), o.Endpoint, term.FormatBytes(int64(o.Bytes)), objectDevices(o), strconv.FormatUint(o.Refs, 10),
			term.FormatAge(now.Sub(o.CreatedAt)), term.FormatAge(now.Sub(o.LastAccessedAt)), heldBy(o), strings.TrimPrefix(o.CacheKey, o.Endpoint+"/"))
	}
	return t
}

// objectDevices returns the devices of an object: "cpu:0", "cuda:0,cuda:1", or "-" for a value without tensors.
func objectDevices(o endpoint.ObjectInfo) string {
	if len(o.Devices) == 0 {
		return "-"
	}
	names := make([]string, len(o.Devices))
	for i, d := range o.Devices {
		names[i] = fmt.Sprintf("%s:%d", d.Type, d.Index)
	}
	return strings.Join(names, ",")
}

// heldBy lists the holders of an object: "worker (pid 17) twice, pid 18".
func heldBy(o endpoint.ObjectInfo) string {
	var words []string
	for _, h := range o.Holders {
		word := processText(h.Process)
		if h.Refs > 1 {
			word += fmt.Sprintf(" %d times", h.Refs)
		}
		words = append(words, word)
	}
	if more := o.Sessions - len(o.Holders); more > 0 {
		words = append(words, fmt.Sprintf("%d more", more))
	}
	return strings.Join(words, ", ")
}

// findObject returns the object with the given id or unambiguous prefix of an id. It returns nil if there is none.
func findObject(list []endpoint.ObjectInfo, word string) (*endpoint.ObjectInfo, error) {
	var found []*endpoint.ObjectInfo
	for i := range list {
		if list[i].ID == word {
			return &list[i], nil
		}
		if word != "" && strings.HasPrefix(list[i].ID, word) {
			found = append(found, &list[i])
		}
	}
	switch len(found) {
	case 0:
		return nil, nil
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("%q is ambiguous: it is the prefix of %s", word, term.Count(len(found), "object"))
}

// completeObjects completes ids of objects, together with the completions of beside.
func completeObjects(o *cli.OwnerFlags, beside ...cobra.CompletionFunc) cobra.CompletionFunc {
	return func(c *cobra.Command, words []string, prefix string) ([]string, cobra.ShellCompDirective) {
		ids := cli.Complete(o, func(ctx context.Context, client *endpoint.Client) (ids []string, err error) {
			list, err := client.Objects(ctx)
			for _, info := range list {
				if strings.HasPrefix(info.ID, prefix) && !slices.Contains(words, info.ID) {
					what := fmt.Sprintf("%s, %s, held by %s", info.Endpoint, term.FormatBytes(int64(info.Bytes)), heldBy(info))
					ids = append(ids, cli.Completion(info.ID, what))
				}
			}
			return ids, err
		})
		for _, other := range beside {
			more, _ := other(c, words, prefix)
			ids = append(ids, more...)
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}
