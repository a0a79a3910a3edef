package jsonrpc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
)

// modelParams identifies a model.
type modelParams struct {
	Name string `json:"name"`
	// Version 0 means the newest version.
	Version uint64 `json:"version,omitempty"`
}

// check returns an error if the name is missing.
func (p *modelParams) check() error {
	if p.Name == "" {
		return fmt.Errorf("%w: the name of the model is missing", errParams)
	}
	return nil
}

// modelList is the result of list_models.
type modelList struct {
	Models []endpoint.ModelInfo `json:"models"`
}

func (c *Component) listModels(ctx context.Context, _ *none) (modelList, error) {
	client, ctx, unbind, err := c.owner(ctx)
	if err != nil {
		return modelList{}, err
	}
	defer unbind()
	list, err := client.List(ctx)
	if list == nil {
		list = []endpoint.ModelInfo{}
	}
	return modelList{list}, err
}

// inspected is the result of inspect_model.
type inspected struct {
	Info     endpoint.ModelInfo `json:"info"`
	Manifest *manifestJSON      `json:"manifest"`
}

func (c *Component) inspectModel(ctx context.Context, p *modelParams) (inspected, error) {
	if err := p.check(); err != nil {
		return inspected{}, err
	}
	client, ctx, unbind, err := c.owner(ctx)
	if err != nil {
		return inspected{}, err
	}
	defer unbind()
	info, err := client.Info(ctx, p.Name)
	if err != nil {
		return inspected{}, err
	}
	version := p.Version
	if version == 0 {
		version = info.Current
	}
	m, err := client.Manifest(ctx, p.Name, version)
	if err != nil {
		return inspected{}, err
	}
	out, err := manifestOf(p.Name, version, client.ServerID(), m)
	return inspected{info, out}, err
}

// holdersOf lists the holders of one version.
type holdersOf struct {
	Version uint64            `json:"version"`
	Newest  bool              `json:"newest"`
	Holders []endpoint.Holder `json:"holders"`
}

func (c *Component) holders(ctx context.Context, p *modelParams) (map[string][]holdersOf, error) {
	if err := p.check(); err != nil {
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
	list := []holdersOf{}
	for _, v := range info.Versions {
		if p.Version != 0 && p.Version != v.Version {
			continue
		}
		one := holdersOf{v.Version, v.Version == info.Current, v.Holders}
		if one.Holders == nil {
			one.Holders = []endpoint.Holder{}
		}
		list = append(list, one)
	}
	return map[string][]holdersOf{"versions": list}, nil
}

// withdraw withdraws a name from the owner.
func (c *Component) withdraw(ctx context.Context, p *modelParams) (map[string]bool, error) {
	if err := c.env.CheckWrite(ctx); err != nil {
		return nil, err
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	client, ctx, unbind, err := c.owner(ctx)
	if err != nil {
		return nil, err
	}
	defer unbind()
	if err := client.Withdraw(ctx, p.Name); err != nil {
		return nil, err
	}
	return map[string]bool{"withdrawn": true}, nil
}

// publishParams holds the source and the name of a publication.
type publishParams struct {
	Name string `json:"name"`
	// Path is a safetensors file, index or directory below --publish-root. URL is a file to fetch; it requires the
	// SHA-256 in hexadecimal.
	Path   string `json:"path,omitempty"`
	URL    string `json:"url,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
}

// published is the result of publish_from.
type published struct {
	Name    string `json:"name"`
	Version uint64 `json:"version"`
	Bytes   int64  `json:"bytes"`
	Tensors int    `json:"tensors"`
}

func (c *Component) publishFrom(ctx context.Context, p *publishParams) (published, error) {
	if err := c.env.CheckWrite(ctx); err != nil {
		return published{}, err
	}
	switch {
	case p.Name == "":
		return published{}, fmt.Errorf("%w: the name of the model is missing", errParams)
	case (p.Path == "") == (p.URL == ""):
		return published{}, fmt.Errorf("%w: give a path or a url", errParams)
	case p.Path != "":
		return c.publishPath(ctx, p)
	}
	return c.publishURL(ctx, p)
}

func (c *Component) publishPath(ctx context.Context, p *publishParams) (out published, err error) {
	path, err := c.below(p.Path)
	if err != nil {
		return out, err
	}
	sd, err := module.Load(ctx, c.dev, path, module.LoadOptions{})
	if err != nil {
		return out, c.hideRoot(err)
	}
	defer func() { err = errors.Join(err, sd.Close()) }()
	return c.publish(ctx, p.Name, sd, p.Path)
}

// publish publishes a state dict. The caller closes sd.
func (c *Component) publish(ctx context.Context, name string, sd *module.StateDict, source string) (published, error) {
	client, ctx, unbind, err := c.owner(ctx)
	if err != nil {
		return published{}, err
	}
	defer unbind()
	version, err := client.PublishWith(ctx, name, sd, endpoint.PublishOptions{Source: source})
	if err != nil {
		return published{}, err
	}
	return published{name, version, sd.Bytes(), sd.Len()}, nil
}

// below resolves name to a path below the root. It refuses links that lead outside.
func (c *Component) below(name string) (string, error) {
	if c.PublishRoot == "" {
		return "", fmt.Errorf("%w: reading files is disabled: start the gateway with --publish-root, or upload to /v1/models/NAME/model.safetensors", errRefused)
	}
	if !filepath.IsLocal(name) {
		return "", fmt.Errorf("%w: %q is not below the folder of --publish-root", errRefused, name)
	}
	path, err := filepath.EvalSymlinks(filepath.Join(c.PublishRoot, name))
	if err != nil {
		return "", c.hideRoot(err)
	}
	if path != c.PublishRoot && !strings.HasPrefix(path, c.PublishRoot+string(filepath.Separator)) {
		return "", fmt.Errorf("%w: %q leads out of the folder of --publish-root", errRefused, name)
	}
	return path, nil
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
