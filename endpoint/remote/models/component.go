// Package models serves an owner's models as files over HTTP.
//
//	GET    /v1/models                                  list the published models
//	GET    /v1/models/NAME                             the versions and holders of a model; DELETE withdraws it
//	GET    /v1/models/NAME[@VERSION]/manifest          list the tensors; ?digests adds the SHA-256 of each
//	GET    /v1/models/NAME[@VERSION]/tensors/TENSOR    the bytes of a tensor, row-major and little-endian, with Range and an ETag
//	GET    /v1/models/NAME[@VERSION]/model.safetensors all tensors as one file, with Range and an ETag
//	PUT    /v1/models/NAME/model.safetensors           publish a file as the next version
//	GET    /v1/models/NAME/changes                     wait for a version other than ?server=ID&version=N; 204 if there is none
//	POST   /v1/models/NAME[@VERSION]/leases            keep a version for ?seconds=60; POST or DELETE /v1/leases/ID renews or ends the lease
//	GET    /v1/models/NAME[@VERSION]/deltas/TENSOR     the change since the version of ?lease=ID, whose tensor has the SHA-256 &base=HEX
//
// Errors are JSON: {"error": {"code": …, "message": …}} with the codes of package jsonrpc.
//
// See [Component] for its use in the gateway.
package models

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"github.com/spf13/pflag"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
)

// Component is the gateway component that serves models as files over HTTP. The zero value is ready to use.
type Component struct {
	// PublishRoot is the directory that publish_from may read. Paths are refused if it is empty.
	PublishRoot string
	// Fetch lists the URL prefixes from which tensors and models may be fetched by reference. URLs are refused if it is
	// empty. The restriction prevents peers from using the gateway to reach hosts that they cannot reach themselves.
	Fetch []string
	// MaxModel limits the size of one uploaded or fetched model, and the total in transfer for one client. All clients
	// together may transfer twice as much. 0 means 16 GiB.
	MaxModel gateway.ByteSize
	// MaxLeased limits the memory of leased versions. 0 means 64 GiB.
	MaxLeased gateway.ByteSize

	env      *gateway.Env
	uploads  driver.Device // memory for received models
	pool     *host.Pool    // the pool behind uploads if that is host memory, otherwise nil
	leases   *leaseStore
	arriving *admission.Pool // bytes of models and tensors in transfer
	fetcher  *http.Client
	hashing  sync.WaitGroup  // digests that are computed in the background
	ctx      context.Context // of these; ends with the component
	stop     context.CancelFunc
}

// Defaults of the component.
const (
	defaultMaxModel  = 16 << 30
	defaultMaxLeased = 64 << 30
)

// Name implements gateway.Component.
func (c *Component) Name() string { return "models" }

// Flags implements gateway.Configurer.
func (c *Component) Flags(set *pflag.FlagSet) {
	if c.MaxModel == 0 {
		c.MaxModel = defaultMaxModel
	}
	if c.MaxLeased == 0 {
		c.MaxLeased = defaultMaxLeased
	}
	set.StringVar(&c.PublishRoot, "publish-root", c.PublishRoot, "directory that publish_from may read; empty refuses paths")
	set.StringSliceVar(&c.Fetch, "fetch", c.Fetch, "URL prefixes from which tensors and models may be fetched; empty refuses URLs")
	set.Var(&c.MaxModel, "max-model", "maximum size of an uploaded or fetched model, and of all models in transfer from one client; all clients together may use twice as much")
	set.Var(&c.MaxLeased, "max-leased", "maximum memory of leased versions")
}

// CheckConfig implements gateway.Configurer.
func (c *Component) CheckConfig() error {
	var errs []error
	if c.PublishRoot != "" {
		if info, err := os.Stat(c.PublishRoot); err != nil {
			errs = append(errs, fmt.Errorf("--publish-root: %w", err))
		} else if !info.IsDir() {
			errs = append(errs, fmt.Errorf("--publish-root: %s is no folder", c.PublishRoot))
		}
	}
	for _, prefix := range c.Fetch {
		if err := checkPrefix(prefix); err != nil {
			errs = append(errs, fmt.Errorf("--fetch: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Register implements gateway.Component.
func (c *Component) Register(_ context.Context, env *gateway.Env) error {
	if env.HTTP == nil {
		env.Logger.Info("models are not served because HTTP is off")
		return nil
	}
	c.Flags(pflag.NewFlagSet("defaults", pflag.ContinueOnError))
	if c.PublishRoot != "" {
		root, err := filepath.EvalSymlinks(c.PublishRoot)
		if err != nil {
			return err
		}
		if c.PublishRoot, err = filepath.Abs(root); err != nil {
			return err
		}
	}
	c.env, c.uploads = env, env.Arrivals
	if dev, is := env.Arrivals.(*host.Device); is {
		// Reusing the memory of an earlier version makes repeated uploads fast: most of an upload's cost is faulting in
		// fresh pages.
		c.pool = host.NewPool(dev, host.PoolOptions{Bytes: int64(c.MaxModel)})
		c.uploads = c.pool
	}
	c.arriving = env.Admission.NewPool(admission.Limits{Bytes: 2 * int64(c.MaxModel), Share: int64(c.MaxModel), Setting: "--max-model"})
	c.leases = newLeaseStore()
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.fetcher = newFetcher(c.Fetch, env.Stall)
	c.handleModels(env.HTTP)
	return nil
}

// Close implements gateway.Component.
func (c *Component) Close(context.Context) error {
	if c.env == nil {
		return nil
	}
	c.stop()
	c.hashing.Wait()
	c.fetcher.CloseIdleConnections()
	err := c.leases.Close()
	if c.pool != nil {
		err = errors.Join(err, c.pool.Close())
	}
	return err
}
