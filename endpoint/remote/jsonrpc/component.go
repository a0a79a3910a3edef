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
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
)

// Component is JSON-RPC and model files over HTTP, as a component of the gateway. The zero value is ready to use.
type Component struct {
	// PublishRoot is the folder below which publish_from may read; empty refuses paths.
	PublishRoot string
	// Fetch are the prefixes of URLs that tensors and models may be fetched from by reference; none refuses URLs. A
	// gateway that fetches whatever it is told would reach for its peers what they cannot reach themselves.
	Fetch []string
	// MaxModel bounds a model that is uploaded or fetched, and all that are on their way at once; 16 GiB where it is 0.
	MaxModel gateway.ByteSize
	// MaxResults bounds the memory of tensors that results keep for GET /v1/results; 1 GiB where it is 0.
	MaxResults gateway.ByteSize
	// MaxLeased bounds the memory of the versions that leases keep; 64 GiB where it is 0.
	MaxLeased gateway.ByteSize

	env       *gateway.Env
	dev       driver.Device // where tensors that arrive are put
	uploads   driver.Device // where models that arrive are put
	pool      *host.Pool    // uploads, where they are in host memory; nil elsewhere
	endpoints endpointCache
	digests   digestCache
	results   resultStore
	leases    leaseStore
	arriving  budget
	fetcher   *http.Client
	end       context.CancelFunc // of what goes on beside requests
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
	set.StringVar(&c.PublishRoot, "publish-root", c.PublishRoot, "folder below which publish_from may read files; none refuses them")
	set.StringSliceVar(&c.Fetch, "fetch", c.Fetch, "prefixes of URLs that tensors and models may be fetched from; none refuses them")
	set.Var(&c.MaxModel, "max-model", "largest model that is uploaded or fetched, and all that are on their way at once")
	set.Var(&c.MaxLeased, "max-leased", "memory of the versions that mirrors keep by leases while they fetch and follow")
	set.Var(&c.MaxResults, "max-results", "memory of results that wait to be fetched from /v1/results")
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
		env.Logger.Info("HTTP is off, and JSON-RPC with it")
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
		// A model that is uploaded again and again gets the memory of the version before the last: making the pages of
		// fresh memory is most of what an upload costs.
		c.pool = host.NewPool(dev, host.PoolOptions{Bytes: int64(c.MaxModel)})
		c.uploads = c.pool
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.end = cancel
	c.results.limit = int64(c.MaxResults)
	c.running.Go(func() { c.results.expire(ctx) })
	c.running.Go(func() { c.leases.expire(ctx) })
	c.fetcher = newFetcher(c.Fetch)
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
