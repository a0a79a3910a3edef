package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// holding is a session that holds a version, as JSON.
type holding struct {
	Name    string `json:"name"`
	Version uint64 `json:"version"`
	State   string `json:"state"`
	Bytes   int64  `json:"bytes"`
	endpoint.Holder
}

func newHoldersCommand() *cobra.Command {
	var o *ownerFlags
	var asJSON *bool
	c := &cobra.Command{
		Use:   "holders [flags] [NAME...]",
		Short: "List who holds what: the processes that keep memory in use",
		Long: `List the sessions that hold a version of the names, or of all names: who they are, what they hold and since when. A
session is one connection of a process. As long as a version has a holder, its memory stays.`,
		Example: "  sharedtensor holders\n  sharedtensor holders llm --json",
		RunE: func(c *cobra.Command, names []string) error {
			return o.withOwner(c.Context(), func(ctx context.Context, client *endpoint.Client) error {
				models, err := listed(ctx, o, client, names)
				if err != nil {
					return err
				}
				list := holdings(models)
				if *asJSON {
					return printJSON(c.OutOrStdout(), list)
				}
				if len(list) == 0 {
					fmt.Fprintf(c.ErrOrStderr(), "nobody holds anything on %s\n", client.Socket())
					return nil
				}
				return holdingTable(list, time.Now()).print(c.OutOrStdout())
			})
		},
	}
	o = addOwnerFlags(c)
	asJSON = jsonFlag(c)
	c.ValidArgsFunction = completeNames(o, 0)
	return c
}

// holdings are the holders of all versions, by name, the newest version first.
func holdings(models []endpoint.ModelInfo) []holding {
	list := []holding{}
	for _, m := range models {
		for _, v := range m.Versions {
			for _, h := range v.Holders {
				list = append(list, holding{m.Name, v.Version, versionState(m, v), v.Bytes, h})
			}
		}
	}
	return list
}

func holdingTable(list []holding, now time.Time) *table {
	t := newTable(column{title: "NAME", give: 1}, column{title: "VERSION", align: right}, column{title: "STATE"},
		column{title: "BYTES", align: right}, column{title: "SESSION", align: right}, column{title: "PID", align: right},
		column{title: "LEASES", align: right}, column{title: "SINCE", align: right}, column{title: "LABEL", give: 2})
	for _, h := range list {
		t.add(h.Name, strconv.FormatUint(h.Version, 10), h.State, formatBytes(h.Bytes), strconv.FormatUint(h.Session, 10),
			strconv.Itoa(int(h.PID)), strconv.Itoa(h.Leases), formatAge(now.Sub(h.Since)), h.Label)
	}
	return t
}
