package command

import (
	"context"
	"errors"
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

// lsFlags holds the flags of the command ls.
type lsFlags struct {
	owner     *cli.OwnerFlags
	all, json bool
}

func newLsCommand() *cobra.Command {
	var o lsFlags
	c := &cobra.Command{
		Use:     "ls [flags] [NAME...]",
		Aliases: []string{"list"},
		Short:   "List the published models",
		Long: `List the published models: the newest version of each name, or with --all every version that is still in memory. HOLDERS is
the number of connections that hold the version; see holders. A version that is loading, waiting or failed to load has a separate line
with its progress and rate, or the error. A version that an earlier owner has kept and that the owner cannot map has a line with
the reason; it stays kept until its name is withdrawn. A copy of a version on another device (serve --place) has a line below the
version, with its size there, its holders, its age, and its state: copying, in use or unused.`,
		Example: `  sharedtensor ls
  sharedtensor ls --all llm
  sharedtensor ls --json`,
		RunE: func(c *cobra.Command, names []string) error {
			return o.owner.WithOwner(c.Context(), func(ctx context.Context, client *endpoint.Client) error {
				return list(ctx, c, o, client, names)
			})
		},
	}
	o.owner = cli.AddOwnerFlags(c)
	c.ValidArgsFunction = cli.CompleteNames(o.owner, 0)
	f := c.Flags()
	f.BoolVarP(&o.all, "all", "a", false, "list every version in memory, including superseded and withdrawn ones")
	f.BoolVar(&o.json, "json", false, "print JSON, always with every version and holder")
	return c
}

// list prints the published models.
func list(ctx context.Context, c *cobra.Command, o lsFlags, client *endpoint.Client, names []string) error {
	models, err := listed(ctx, o.owner, client, names)
	if err != nil {
		return err
	}
	if o.json {
		return term.PrintJSON(c.OutOrStdout(), models)
	}
	if len(models) == 0 {
		fmt.Fprintf(c.ErrOrStderr(), "nothing is published on %s\n", client.Socket())
		return nil
	}
	return modelTable(models, o.all, time.Now()).Print(c.OutOrStdout())
}

// listed returns the owner's models, or the named ones. It fails for an unknown name.
func listed(ctx context.Context, o *cli.OwnerFlags, client *endpoint.Client, names []string) ([]endpoint.ModelInfo, error) {
	ctx, cancel := o.Bounded(ctx)
	defer cancel()
	models, err := client.List(ctx)
	if err != nil || len(names) == 0 {
		return models, err
	}
	for _, name := range names {
		if !slices.ContainsFunc(models, func(m endpoint.ModelInfo) bool { return m.Name == name }) {
			return nil, fmt.Errorf("%q: %w on %s; %s", name, endpoint.ErrNotFound, client.Socket(), itHas(modelNames(models)))
		}
	}
	return slices.DeleteFunc(models, func(m endpoint.ModelInfo) bool { return !slices.Contains(names, m.Name) }), nil
}

// modelNames returns the names of the models.
func modelNames(models []endpoint.ModelInfo) []string {
	names := make([]string, len(models))
	for i, m := range models {
		names[i] = m.Name
	}
	return names
}

// itHas lists the names that an owner has, for errors about a name that it lacks.
func itHas(names []string) string {
	const shown = 10
	switch n := len(names); {
	case n == 0:
		return "it has none"
	case n > shown:
		return fmt.Sprintf("it has %s and %d more", term.Printable(strings.Join(names[:shown], ", ")), n-shown)
	}
	return "it has " + term.Printable(strings.Join(names, ", "))
}

// withPublished adds the names of the owner to the error for a name that is not published.
func withPublished(ctx context.Context, client *endpoint.Client, name string, err error) error {
	if !errors.Is(err, endpoint.ErrNotFound) {
		return err
	}
	models, failed := client.List(ctx)
	if failed != nil || slices.Contains(modelNames(models), name) {
		return err
	}
	return fmt.Errorf("%w; %s", err, itHas(modelNames(models)))
}

// shown returns the versions of a model to list.
func shown(m endpoint.ModelInfo, all bool) []endpoint.VersionInfo {
	if all {
		return m.Versions
	}
	return slices.DeleteFunc(slices.Clone(m.Versions), func(v endpoint.VersionInfo) bool { return v.Version != m.Current })
}

// modelTable returns a row for each version.
func modelTable(models []endpoint.ModelInfo, all bool, now time.Time) *term.Table {
	columns := []term.Column{
		{Title: "NAME", Give: 1}, {Title: "VERSION", Align: term.Right}, {Title: "BYTES", Align: term.Right},
		{Title: "TENSORS", Align: term.Right}, {Title: "HOLDERS", Align: term.Right}, {Title: "AGE", Align: term.Right},
	}
	loading := slices.ContainsFunc(models, func(m endpoint.ModelInfo) bool {
		marked := slices.ContainsFunc(shown(m, all), func(v endpoint.VersionInfo) bool { return len(v.Placements) > 0 || v.Parts > 0 })
		return m.Loading != nil || len(m.NotAdopted) > 0 || m.Incomplete != nil || marked
	})
	if all || loading {
		columns = append(columns, term.Column{Title: "STATE", Give: 3})
	}
	t := term.NewTable(append(columns, term.Column{Title: "SOURCE", Give: 2, Path: true})...)
	for _, m := range models {
		for _, v := range shown(m, all) {
			cells := []string{
				m.Name, strconv.FormatUint(v.Version, 10), term.FormatBytes(v.Bytes), strconv.Itoa(v.Tensors),
				strconv.Itoa(max(v.Sessions, len(v.Holders))), term.FormatAge(now.Sub(v.PublishedAt)),
			}
			if all || loading {
				cells = append(cells, versionState(m, v))
			}
			t.Add(append(cells, source(v))...)
			for _, p := range v.Placements {
				age := "-"
				if !p.MadeAt.IsZero() {
					age = term.FormatAge(now.Sub(p.MadeAt))
				}
				t.Add("  on "+driverName(p.Device), strconv.FormatUint(v.Version, 10), term.FormatBytes(p.Bytes), "-", strconv.Itoa(p.Holders), age,
					placementState(p, now), "copy of "+m.Name)
			}
		}
		if l := m.Loading; l != nil {
			size, age := "-", "-"
			if l.Total > 0 {
				size = term.FormatBytes(l.Total)
			}
			if !l.StartedAt.IsZero() {
				age = term.FormatAge(now.Sub(l.StartedAt))
			}
			t.Add(m.Name, "-", size, "-", "-", age, loadText(l), l.Source)
		}
		if v := m.Incomplete; v != nil {
			t.Add(m.Name, "-", term.FormatBytes(v.Bytes), "-", "-", term.FormatAge(now.Sub(v.StartedAt)), incompleteText(v), "")
		}
		for _, v := range m.NotAdopted {
			t.Add(m.Name, strconv.FormatUint(v.Version, 10), term.FormatBytes(v.Bytes), "-", "-", term.FormatAge(now.Sub(v.PublishedAt)),
				"not adopted: "+cli.OneLine(v.Reason), v.Source)
		}
	}
	return t
}

// incompleteText describes a version that waits for parts.
func incompleteText(v *endpoint.IncompleteInfo) string {
	var parts []string
	for _, i := range v.Parts {
		parts = append(parts, strconv.Itoa(i))
	}
	text := fmt.Sprintf("incomplete: has %s of %d parts", strings.Join(parts, ", "), v.Of)
	if v.Key != "" {
		text += ", key " + cli.OneLine(v.Key)
	}
	return text
}

// loadText describes the state of a load: "loading 42%, 1.2 GiB/s", "waiting", "failed: out of memory".
func loadText(l *endpoint.LoadInfo) string {
	switch {
	case l.State == endpoint.LoadFailed:
		return "failed: " + cli.OneLine(l.Error)
	case l.State != endpoint.LoadRunning || l.Total <= 0:
		return string(l.State)
	}
	text := "loading " + percent(float64(l.Done), float64(l.Total))
	if l.BytesPerSecond() > 0 {
		text += ", " + term.FormatRate(l.Done, l.UpdatedAt.Sub(l.StartedAt))
	}
	return text
}

// placementState describes the state of a placement.
func placementState(p endpoint.PlacementInfo, now time.Time) string {
	switch {
	case p.Making:
		return "copying"
	case p.UnusedSince.IsZero():
		return "in use, " + term.Count(int(p.Hits), "hit")
	}
	return "unused for " + term.FormatAge(now.Sub(p.UnusedSince))
}

// versionState describes the state of a version.
func versionState(m endpoint.ModelInfo, v endpoint.VersionInfo) string {
	state := "superseded"
	switch {
	case v.Version == m.Current:
		state = "current"
	case v.Withdrawn || m.Current == 0:
		state = "withdrawn"
	}
	if v.Parts > 0 {
		state += fmt.Sprintf(", %d parts", v.Parts)
	}
	return state
}

// source returns the origin of a version: a file if known, otherwise the publishing process.
func source(v endpoint.VersionInfo) string {
	if v.Source != "" {
		return v.Source
	}
	return processText(v.Publisher)
}

// processText formats a process.
func processText(p endpoint.Process) string {
	text := "pid " + strconv.Itoa(int(p.PID))
	if p.Label != "" {
		text = p.Label + " (" + text + ")"
	}
	return text
}
