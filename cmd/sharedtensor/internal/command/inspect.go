package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
)

// inspectFlags holds the flags of the command inspect.
type inspectFlags struct {
	owner        *cli.OwnerFlags
	version      uint64
	name         bool
	digest, json bool
	pythonTies   bool
}

func newInspectCommand() *cobra.Command {
	var o inspectFlags
	c := &cobra.Command{
		Use:   "inspect [flags] NAME|PATH",
		Short: "Show the tensors of a published model or of a file",
		Long: `Show the tensors of a model: dtype, shape, bytes, and for a tied tensor the name whose bytes it shares. An argument that is a
path on disk, or hf:ORG/MODEL[@REVISION][:FILE], is read as a file, anything else is a published name; --name selects the published name in any case. --digest
computes the SHA-256 of each tensor's bytes, row-major as in a file, to compare a published model with its file. If the owner
has computed a digest of the whole model (serve and publish --digests), it is shown also without --digest. For a model that is
still loading, the progress is shown.`,
		Example: `  sharedtensor inspect llm
  sharedtensor inspect ./model.safetensors --digest
  sharedtensor inspect llm --digest --json`,
		Args: cli.Exactly("NAME or PATH"),
		RunE: func(c *cobra.Command, words []string) error {
			return inspect(c, o, words[0])
		},
	}
	o.owner = cli.AddOwnerFlags(c)
	c.ValidArgsFunction = func(_ *cobra.Command, words []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(words) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return cli.PublishedNames(o.owner, prefix), cobra.ShellCompDirectiveDefault
	}
	f := c.Flags()
	f.BoolVar(&o.digest, "digest", false, "compute the SHA-256 of each tensor's bytes")
	f.BoolVar(&o.name, "name", false, "use the published name even if there is a file of that name")
	f.Uint64Var(&o.version, "version", 0, "version of the name; 0 means the newest")
	pythonTiesFlag(c, &o.pythonTies)
	f.BoolVar(&o.json, "json", false, "print JSON")
	return c
}

// inspect describes a file if the argument is one, otherwise a published model.
func inspect(c *cobra.Command, o inspectFlags, what string) error {
	var d *description
	_, err := os.Stat(what)
	switch {
	case o.name || o.version != 0:
		d, err = describeName(c, o, what)
	case errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(what, hubScheme):
		d, err = describeFile(c, o, what)
	case err == nil:
		noteName(c, o.owner, what)
		d, err = describeFile(c, o, what)
	case errors.Is(err, fs.ErrNotExist):
		if d, err = describeName(c, o, what); errors.Is(err, endpoint.ErrNotFound) || errors.Is(err, endpoint.ErrUnavailable) {
			err = fmt.Errorf("%q is neither a file nor a published name: %w", what, err)
		}
	}
	if err != nil {
		return err
	}
	if o.json {
		return term.PrintJSON(c.OutOrStdout(), d)
	}
	return d.print(c.OutOrStdout())
}

// noteName prints a note if the name of a file is also a published name.
func noteName(c *cobra.Command, o *cli.OwnerFlags, what string) {
	ctx, cancel := context.WithTimeout(c.Context(), cli.CompletionTime)
	defer cancel()
	client, err := o.Silent().Dial(ctx)
	if err != nil {
		return // no owner to query
	}
	defer client.Close()
	if _, err := client.Info(ctx, what); err == nil {
		fmt.Fprintf(c.ErrOrStderr(), "%s is also a published name; showing the file, use --name for the published name\n", term.Printable(what))
	}
}

// describeFile describes a model on disk without loading it.
func describeFile(c *cobra.Command, o inspectFlags, path string) (_ *description, err error) {
	model, _, err := modelArg{path: path, load: loadFlags{pythonTies: o.pythonTies}}.open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	warnOf(c.ErrOrStderr(), model)
	layout, err := module.PlanLayout(model, 1)
	if err != nil {
		return nil, err
	}
	d := &description{Path: model.Path, Tensors: []*tensorRow{}}
	for _, p := range layout.Tensors {
		t := tensorRow{Name: p.Name, DType: p.Spec.DType.String(), Shape: p.Spec.Shape, Bytes: p.Bytes, TiedTo: p.TiedTo}
		if len(model.Files) > 1 {
			t.File = model.Files[p.File].Path
		}
		d.add(t)
	}
	d.Metadata = layout.Metadata
	for _, t := range model.PossibleTies() {
		d.PossibleTies = append(d.PossibleTies, possibleTie{t.Name, t.Kept})
	}
	if !o.digest {
		return d, nil
	}
	err = d.hash(c, func(t *tensorRow) (hashSource, error) {
		entry, _ := model.Lookup(t.Name) // always found: the layout contains it
		return section{model.Reader(entry)}, nil
	})
	return d, errors.Join(model.Unchanged(), err)
}

// describeName describes a published model. It attaches the model only to compute digests.
func describeName(c *cobra.Command, o inspectFlags, name string) (*description, error) {
	d := &description{Tensors: []*tensorRow{}}
	err := o.owner.WithOwner(c.Context(), func(ctx context.Context, client *endpoint.Client) error {
		ctx, cancel := o.owner.Bounded(ctx)
		defer cancel()
		d.Name, d.Socket = name, client.Socket()
		ask := func() (endpoint.ModelInfo, error) { return client.Info(ctx, name) }
		info, err := loaded(ctx, o.owner, ask)
		if errors.Is(err, endpoint.ErrNotFound) && o.version == 0 && !o.digest {
			if d.Loading = loadOf(ctx, client, name); d.Loading != nil {
				return nil
			}
		}
		if err != nil {
			return withPublished(ctx, client, name, err)
		}
		d.Version, d.Loading = info.Current, info.Loading
		if o.version != 0 {
			d.Version = o.version
		}
		for _, v := range info.Versions {
			if v.Version == d.Version {
				d.DigestState, d.Digest = v.DigestState, v.Digest
			}
		}
		m, err := client.Manifest(ctx, name, d.Version)
		if err != nil {
			return err
		}
		return d.fill(m)
	})
	if err != nil || !o.digest {
		return d, err
	}
	return d, withModel(c.Context(), o.owner, name, d.Version, "", func(h *endpoint.Handle) error {
		return d.hash(c, func(t *tensorRow) (hashSource, error) {
			got, found := h.StateDict().Get(t.Name)
			if !found {
				return nil, fmt.Errorf("tensor %q: %w in version %d", t.Name, endpoint.ErrNotFound, h.Version())
			}
			return got, nil
		})
	})
}

// loadOf returns the state of a name that the owner is loading for the first time or has failed to load, or nil.
func loadOf(ctx context.Context, client *endpoint.Client, name string) *endpoint.LoadInfo {
	models, err := client.List(ctx)
	if err != nil {
		return nil
	}
	for _, m := range models {
		if m.Name == name {
			return m.Loading
		}
	}
	return nil
}

// hash computes the digests of all tensors and shows the progress.
func (d *description) hash(c *cobra.Command, open func(*tensorRow) (hashSource, error)) error {
	meter := term.NewMeter(c.ErrOrStderr(), "hashing", "hashed", d.title())
	err := hashAll(c.Context(), d.Tensors, open, meter.Update)
	meter.Close()
	return err
}
