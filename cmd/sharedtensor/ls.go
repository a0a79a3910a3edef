package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// lsFlags are the flags of the command ls.
type lsFlags struct {
	owner              *ownerFlags
	all, holders, json bool
}

func newLsCommand() *cobra.Command {
	var o lsFlags
	c := &cobra.Command{
		Use:     "ls [flags] [NAME...]",
		Aliases: []string{"list"},
		Short:   "List what is published, and who holds it",
		Long: `List what the owner has published: the newest version of each name, or with --all every version that is still
in memory. HOLDERS is the number of connections that hold the version. A version that the owner is still loading, waits
to load or failed to load is a line of its own, with how far it is, how fast, or why.`,
		Example: `  sharedtensor ls
  sharedtensor ls --all --holders llm
  sharedtensor ls --json`,
		RunE: func(c *cobra.Command, names []string) error {
			return o.owner.withOwner(c.Context(), func(ctx context.Context, client *endpoint.Client) error {
				return list(ctx, c, o, client, names)
			})
		},
	}
	o.owner = addOwnerFlags(c)
	c.ValidArgsFunction = completeNames(o.owner, 0)
	f := c.Flags()
	f.BoolVarP(&o.all, "all", "a", false, "list every version that is in memory, also superseded and withdrawn ones")
	f.BoolVar(&o.holders, "holders", false, "list the processes that hold each version")
	f.BoolVar(&o.json, "json", false, "print JSON, always with every version and holder")
	return c
}

// list prints what is published.
func list(ctx context.Context, c *cobra.Command, o lsFlags, client *endpoint.Client, names []string) error {
	models, err := listed(ctx, o.owner, client, names)
	if err != nil {
		return err
	}
	if o.json {
		return printJSON(c.OutOrStdout(), models)
	}
	if len(models) == 0 {
		fmt.Fprintf(c.ErrOrStderr(), "nothing is published on %s\n", client.Socket())
		return nil
	}
	if o.holders {
		return holderTable(models, o.all).print(c.OutOrStdout())
	}
	return modelTable(models, o.all, time.Now()).print(c.OutOrStdout())
}

// listed asks the owner. A name that it does not know is an error.
func listed(ctx context.Context, o *ownerFlags, client *endpoint.Client, names []string) ([]endpoint.ModelInfo, error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	models, err := client.List(ctx)
	if err != nil || len(names) == 0 {
		return models, err
	}
	for _, name := range names {
		if !slices.ContainsFunc(models, func(m endpoint.ModelInfo) bool { return m.Name == name }) {
			return nil, fmt.Errorf("%q: %w on %s", name, endpoint.ErrNotFound, client.Socket())
		}
	}
	return slices.DeleteFunc(models, func(m endpoint.ModelInfo) bool { return !slices.Contains(names, m.Name) }), nil
}

// shown are the versions of a model that are listed.
func shown(m endpoint.ModelInfo, all bool) []endpoint.VersionInfo {
	if all {
		return m.Versions
	}
	return slices.DeleteFunc(slices.Clone(m.Versions), func(v endpoint.VersionInfo) bool { return v.Version != m.Current })
}

// modelTable is a line for each version.
func modelTable(models []endpoint.ModelInfo, all bool, now time.Time) *table {
	columns := []column{
		{title: "NAME", give: 1}, {title: "VERSION", align: right}, {title: "BYTES", align: right},
		{title: "TENSORS", align: right}, {title: "HOLDERS", align: right}, {title: "AGE", align: right},
	}
	loading := slices.ContainsFunc(models, func(m endpoint.ModelInfo) bool { return m.Loading != nil })
	if all || loading {
		columns = append(columns, column{title: "STATE", give: 3})
	}
	t := newTable(append(columns, column{title: "SOURCE", give: 2})...)
	for _, m := range models {
		for _, v := range shown(m, all) {
			cells := []string{
				m.Name, strconv.FormatUint(v.Version, 10), formatBytes(v.Bytes), strconv.Itoa(v.Tensors),
				strconv.Itoa(len(v.Holders)), formatAge(now.Sub(v.PublishedAt)),
			}
			if all || loading {
				cells = append(cells, versionState(m, v))
			}
			t.add(append(cells, source(v))...)
		}
		if l := m.Loading; l != nil {
			size := "-"
			if l.Total > 0 {
				size = formatBytes(l.Total)
			}
			t.add(m.Name, "-", size, "-", "-", orDash(!l.StartedAt.IsZero(), formatAge(now.Sub(l.StartedAt))), loadText(l), l.Source)
		}
	}
	return t
}

// loadText says how a version stands that is being loaded: "loading 42%, 1.2 GiB/s", "waiting", "failed: out of memory".
func loadText(l *endpoint.LoadInfo) string {
	switch {
	case l.State == endpoint.LoadFailed:
		return "failed: " + oneLine(l.Error)
	case l.State != endpoint.LoadRunning || l.Total <= 0:
		return string(l.State)
	}
	text := "loading " + percent(float64(l.Done), float64(l.Total))
	if l.BytesPerSecond() > 0 {
		text += ", " + formatRate(l.Done, l.UpdatedAt.Sub(l.StartedAt))
	}
	return text
}

// versionState says how a version stands.
func versionState(m endpoint.ModelInfo, v endpoint.VersionInfo) string {
	switch {
	case v.Version == m.Current:
		return "current"
	case v.Withdrawn || m.Current == 0:
		return "withdrawn"
	}
	return "superseded"
}

// source says where a version came from: a file, or else a process.
func source(v endpoint.VersionInfo) string {
	if v.Source != "" {
		return v.Source
	}
	return processText(v.Publisher)
}

// processText is a process for people.
func processText(p endpoint.Process) string {
	text := "pid " + strconv.Itoa(int(p.PID))
	if p.Label != "" {
		text = p.Label + " (" + text + ")"
	}
	return text
}

// holderTable is a line for each holder of each version.
func holderTable(models []endpoint.ModelInfo, all bool) *table {
	t := newTable(column{title: "NAME", give: 1}, column{title: "VERSION", align: right}, column{title: "PID", align: right},
		column{title: "UID", align: right}, column{title: "LEASES", align: right}, column{title: "SINCE"}, column{title: "LABEL", give: 2})
	for _, m := range models {
		for _, v := range shown(m, all) {
			version := strconv.FormatUint(v.Version, 10)
			for _, h := range v.Holders {
				t.add(m.Name, version, strconv.Itoa(int(h.PID)), strconv.FormatUint(uint64(h.UID), 10),
					strconv.Itoa(h.Leases), h.Since.Format(time.DateTime), h.Label)
			}
			if len(v.Holders) == 0 {
				t.add(m.Name, version, "-", "-", "-", "-", "nobody holds it")
			}
		}
	}
	return t
}
