package jsonrpc

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

// Component is the gateway component that serves JSON-RPC and model files over HTTP. The zero value is ready to use.
type Component struct {
	// PublishRoot is the directory that publish_from may read. Paths are refused if it is empty.
	PublishRoot string
	// Fetch lists the URL prefixes from which tensors and models may be fetched by reference. URLs are refused if it is
	// empty. The restriction prevents peers from using the gateway to reach hosts that they cannot reach themselves.
	Fetch []string
	// MaxModel limits the size of one uploaded or fetched model, and the total in transfer for one client. All clients
	// together may transfer twice as much. 0 means 16 GiB.
	MaxModel gateway.ByteSize
	// MaxResults limits the memory of result tensors kept for GET /v1/results. 0 means 1 GiB.
	MaxResults gateway.ByteSize
	// MaxLeased limits the memory of leased versions. 0 means 64 GiB.
	MaxLeased gateway.ByteSize

	env       *gateway.Env
	dev       driver.Device // memory for received tensors
	uploads   driver.Device // memory for received models
	pool      *host.Pool    // the pool behind uploads if that is host memory, otherwise nil
	endpoints endpointCache
	digests   digestCache
	results   resultStore
	leases    leaseStore
	tasks     taskOwners
	arriving  *admission.Pool // bytes of models and tensors in transfer
	fetcher   *http.Client
	end       context.CancelFunc // cancels background work
	running   sync.WaitGroup
}

// Defaults of the component.
const (
	defaultMaxModel   = 16 << 30
	defaultMaxResults = 1 << 30
	defaultMaxLeased  = 64 << 30
)

// Name implements gateway.Component.
func (c *Component) Name() string { return "jsonrpc" }

// Flags implements gateway.Configurer.
func (c *Component) Flags(set *pflag.FlagSet) {
	if c.MaxModel == 0 {
		c.MaxModel = defaultMaxModel
	}
	if c.MaxResults == 0 {
		c.MaxResults = defaultMaxResults
	}
	if c.MaxLeased == 0 {
		c.MaxLeased = defaultMaxLeased
	}
	set.StringVar(&c.PublishRoot, "publish-root", c.PublishRoot, "directory that publish_from may read; empty refuses paths")
	set.StringSliceVar(&c.Fetch, "fetch", c.Fetch, "URL prefixes from which tensors and models may be fetched; empty refuses URLs")
	set.Var(&c.MaxModel, "max-model", "maximum size of an uploaded or fetched model, and of all models in transfer from one client; all clients together may use twice as much")
	set.Var(&c.MaxLeased, "max-leased", "maximum memory of leased versions")
	set.Var(&c.MaxResults, "max-results", "maximum memory of results kept for /v1/results")
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
		env.Logger.Info("JSON-RPC is off because HTTP is off")
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
	c.env, c.dev, c.uploads = env, env.Devices[0], env.Arrivals
	if dev, is := env.Arrivals.(*host.Device); is {
		// Reusing the memory of an earlier version makes repeated uploads fast: most of an upload's cost is faulting in
		// fresh pages.
		c.pool = host.NewPool(dev, host.PoolOptions{Bytes: int64(c.MaxModel)})
		c.uploads = c.pool
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.end = cancel
	c.arriving = env.Admission.NewPool(admission.Limits{Bytes: 2 * int64(c.MaxModel), Share: int64(c.MaxModel), Setting: "--max-model"})
	c.results.memory = admission.NewPool(admission.Limits{Bytes: int64(c.MaxResults), ReadOnly: max(1, int64(c.MaxResults)/4), Setting: "--max-results"})
	c.results.slots, c.leases.slots = newSlots(maxResults), newSlots(maxLeases)
	c.running.Go(func() { c.results.expire(ctx) })
	c.running.Go(func() { c.leases.expire(ctx) })
	c.fetcher = newFetcher(c.Fetch, env.Stall)
	h := &rpcHandler{Component: c, methods: c.rpcMethods()}
	env.HTTP.Handle("/jsonrpc", h)
	c.handleModels(env.HTTP)
	return nil
}

// Close implements gateway.Component.
func (c *Component) Close(context.Context) error {
	if c.end == nil {
		return nil
	}
	c.end()
	c.running.Wait()
	c.fetcher.CloseIdleConnections()
	err := errors.Join(c.leases.close(), c.results.close())
	if c.pool != nil {
		err = errors.Join(err, c.pool.Close())
	}
	return err
}
