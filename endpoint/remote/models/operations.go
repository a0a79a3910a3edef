package models

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// Ref identifies a model.
type Ref struct {
	Name string `json:"name"`
	// Version 0 means the newest version.
	Version uint64 `json:"version,omitempty"`
}

// check returns an error if the name is missing.
func (p *Ref) check() error {
	if p.Name == "" {
		return fmt.Errorf("%w: the name of the model is missing", ErrParams)
	}
	return nil
}

// owner returns the connection to the owner, and ctx bound to it. The caller calls the function when the request has
// ended.
func (c *Component) owner(ctx context.Context) (*endpoint.Client, context.Context, context.CancelFunc, error) {
	client, err := c.env.Owner.Client()
	if err != nil {
		return nil, ctx, nil, err
	}
	ctx, cancel := c.env.Owner.Bind(ctx)
	return client, ctx, cancel, nil
}

// ModelList is the result of list_models.
type ModelList struct {
	Models []endpoint.ModelInfo `json:"models"`
}

// List returns the published models.
func (c *Component) List(ctx context.Context) (ModelList, error) {
	if err := c.env.Allow(ctx, access.List, ""); err != nil {
		return ModelList{}, err
	}
	client, ctx, unbind, err := c.owner(ctx)
	if err != nil {
		return ModelList{}, err
	}
	defer unbind()
	list, err := client.List(ctx)
	list = rights.Filter(rights.Sender(ctx), access.List, list, func(m endpoint.ModelInfo) string { return m.Name })
	if list == nil {
		list = []endpoint.ModelInfo{}
	}
	return ModelList{list}, err
}

// Inspection is the result of inspect_model.
type Inspection struct {
	Info     endpoint.ModelInfo  `json:"info"`
	Manifest *modelwire.Manifest `json:"manifest"`
}

// Inspect returns the state of a name and the manifest of one version.
func (c *Component) Inspect(ctx context.Context, p *Ref) (Inspection, error) {
	if err := p.check(); err != nil {
		return Inspection{}, err
	}
	if err := c.env.Allow(ctx, access.List, p.Name); err != nil {
		return Inspection{}, err
	}
	client, ctx, unbind, err := c.owner(ctx)
	if err != nil {
		return Inspection{}, err
	}
	defer unbind()
	info, err := client.Info(ctx, p.Name)
	if err != nil {
		return Inspection{}, err
	}
	version := p.Version
	if version == 0 {
		version = info.Current
	}
	m, err := client.Manifest(ctx, p.Name, version)
	if err != nil {
		return Inspection{}, err
	}
	out, err := modelwire.ManifestOf(p.Name, version, client.ServerID(), m)
	if err != nil {
		return Inspection{}, err
	}
	out.Digested = false // digests are listed if they are requested
	return Inspection{info, out}, nil
}

// VersionHolders lists the holders of one version.
type VersionHolders struct {
	Version uint64            `json:"version"`
	Newest  bool              `json:"newest"`
	Holders []endpoint.Holder `json:"holders"`
}

// Holders returns the holders of the versions of a name.
func (c *Component) Holders(ctx context.Context, p *Ref) (map[string][]VersionHolders, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	if err := c.env.Allow(ctx, access.List, p.Name); err != nil {
		return nil, err
	}
	client, ctx, unbind, err := c.owner(ctx)
	if err != nil {
		return nil, err
	}
	defer unbind()
	info, err := client.Info(ctx, p.Name)
	if err != nil {
		return nil, err
	}
	list := []VersionHolders{}
	for _, v := range info.Versions {
		if p.Version != 0 && p.Version != v.Version {
			continue
		}
		one := VersionHolders{v.Version, v.Version == info.Current, v.Holders}
		if one.Holders == nil {
			one.Holders = []endpoint.Holder{}
		}
		list = append(list, one)
	}
	return map[string][]VersionHolders{"versions": list}, nil
}

// Withdraw withdraws a name from the owner.
func (c *Component) Withdraw(ctx context.Context, p *Ref) (map[string]bool, error) {
	return c.withdraw(ctx, p, conditions{})
}

// withdraw withdraws a name if the conditions hold.
func (c *Component) withdraw(ctx context.Context, p *Ref, wanted conditions) (map[string]bool, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	if err := c.env.Allow(ctx, access.Withdraw, p.Name); err != nil {
		return nil, err
	}
	client, ctx, unbind, err := c.owner(ctx)
	if err != nil {
		return nil, err
	}
	defer unbind()
	if wanted.needed() { // conditions of requests that fail without them are ignored (RFC 9110, section 13.2.1)
		if _, err := client.Info(ctx, p.Name); err != nil {
			return nil, err
		}
	}
	err = c.changeIf(ctx, client, p.Name, wanted, func(current *uint64) error {
		if current == nil {
			return client.Withdraw(ctx, p.Name)
		}
		return client.WithdrawIf(ctx, p.Name, *current)
	})
	if err != nil {
		return nil, err
	}
	c.env.Audited(ctx, gateway.ChangeWithdraw, "model", p.Name)
	return map[string]bool{"withdrawn": true}, nil
}

// PublishParams holds the source and the name of a publication.
type PublishParams struct {
	Name string `json:"name"`
	// Path is a safetensors file, index or directory below --publish-root. URL is a file to fetch; it requires the
	// SHA-256 in hexadecimal.
	Path   string `json:"path,omitempty"`
	URL    string `json:"url,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
}

// Published is the result of publish_from.
type Published struct {
	Name    string `json:"name"`
	Version uint64 `json:"version"`
	Bytes   int64  `json:"bytes"`
	Tensors int    `json:"tensors"`
}

// PublishFrom publishes a file of the gateway's host or of a URL as the next version of a name.
func (c *Component) PublishFrom(ctx context.Context, p *PublishParams) (Published, error) {
	if err := c.env.Allow(ctx, access.Publish, p.Name); err != nil {
		return Published{}, err
	}
	switch {
	case p.Name == "":
		return Published{}, fmt.Errorf("%w: the name of the model is missing", ErrParams)
	case (p.Path == "") == (p.URL == ""):
		return Published{}, fmt.Errorf("%w: give a path or a url", ErrParams)
	case p.Path != "":
		return c.publishPath(ctx, p)
	}
	return c.publishURL(ctx, p)
}

func (c *Component) publishPath(ctx context.Context, p *PublishParams) (out Published, err error) {
	sd, err := c.load(ctx, p.Path)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, sd.Close()) }()
	return c.publish(ctx, p.Name, sd, p.Path, conditions{})
}

// publish publishes a state dict if the conditions hold. The caller closes sd.
func (c *Component) publish(ctx context.Context, name string, sd *module.StateDict, source string, wanted conditions) (Published, error) {
	client, ctx, unbind, err := c.owner(ctx)
	if err != nil {
		return Published{}, err
	}
	defer unbind()
	version := uint64(0)
	err = c.changeIf(ctx, client, name, wanted, func(current *uint64) (err error) {
		version, err = client.Publish(ctx, name, sd, endpoint.PublishOptions{Source: source, Current: current})
		return err
	})
	if err != nil {
		return Published{}, err
	}
	c.env.Audited(ctx, gateway.ChangePublish, "model", name, "version", version, "bytes", sd.Bytes(), "source", source)
	return Published{name, version, sd.Bytes(), sd.Len()}, nil
}

// load loads a model below the root. It refuses links that lead outside.
func (c *Component) load(ctx context.Context, name string) (*module.StateDict, error) {
	if c.PublishRoot == "" {
		return nil, fmt.Errorf("%w: reading files is disabled: start the gateway with --publish-root, or upload to /v1/models/NAME/model.safetensors", ErrRefused)
	}
	root, err := os.OpenRoot(c.PublishRoot)
	if err != nil {
		return nil, c.hideRoot(err)
	}
	defer root.Close()
	model, err := module.OpenModelIn(root, name)
	if errors.Is(err, safetensors.ErrOutside) {
		return nil, fmt.Errorf("%w: --publish-root: %w", ErrRefused, err)
	}
	if err != nil {
		return nil, c.hideRoot(err)
	}
	sd, err := module.LoadModel(ctx, c.env.Devices[0], model, module.LoadOptions{})
	_ = model.Close() // the files were only read
	if err != nil {
		return nil, c.hideRoot(err)
	}
	return sd, nil
}

// hideRoot removes the path of the root on the gateway's host from an error.
func (c *Component) hideRoot(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("no such file below --publish-root: %w", endpoint.ErrNotFound)
	}
	return &reworded{strings.ReplaceAll(err.Error(), c.PublishRoot, "."), err}
}

// reworded replaces the text of an error.
type reworded struct {
	text string
	err  error
}

// Error returns the replaced text.
func (e *reworded) Error() string { return e.text }

// Unwrap returns the original error.
func (e *reworded) Unwrap() error { return e.err }
