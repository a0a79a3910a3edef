package jsonrpc

import (
	"context"
	"net/http"
	"sync"

	"github.com/spf13/pflag"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
)

// Component is the gateway component that serves JSON-RPC. The zero value is ready to use.
type Component struct {
	// Models is a component of the same gateway that is registered before this one. The methods on models and tensors
	// by URL use it. If it is nil, they are refused.
	Models *models.Component
	// MaxResults limits the memory of result tensors kept for GET /v1/results. 0 means 1 GiB.
	MaxResults gateway.ByteSize

	env       *gateway.Env
	dev       driver.Device // memory for received tensors
	endpoints endpointCache
	results   resultStore
	tasks     taskOwners
	end       context.CancelFunc // cancels background work
	running   sync.WaitGroup
}

// defaultMaxResults is the default of Component.MaxResults.
const defaultMaxResults = 1 << 30

// Name implements gateway.Component.
func (c *Component) Name() string { return "jsonrpc" }

// Flags implements gateway.Configurer.
func (c *Component) Flags(set *pflag.FlagSet) {
	if c.MaxResults == 0 {
		c.MaxResults = defaultMaxResults
	}
	set.Var(&c.MaxResults, "max-results", "maximum memory of results kept for /v1/results")
}

// CheckConfig implements gateway.Configurer.
func (c *Component) CheckConfig() error { return nil }

// Register implements gateway.Component.
func (c *Component) Register(_ context.Context, env *gateway.Env) error {
	if env.HTTP == nil {
		env.Logger.Info("JSON-RPC is off because HTTP is off")
		return nil
	}
	c.Flags(pflag.NewFlagSet("defaults", pflag.ContinueOnError))
	c.env, c.dev = env, env.Devices[0]
	ctx, cancel := context.WithCancel(context.Background())
	c.end = cancel
	c.results = newResultStore(int64(c.MaxResults))
	c.running.Go(func() { c.results.Run(ctx, resultTTL/10) })
	h := &rpcHandler{Component: c, methods: c.rpcMethods()}
	env.HTTP.Handle("/jsonrpc", h)
	env.HTTP.Handle("GET /v1/results/{id}", http.HandlerFunc(c.serveResult))
	env.HTTP.Handle("DELETE /v1/results/{id}", http.HandlerFunc(c.deleteResult))
	return nil
}

// Close implements gateway.Component.
func (c *Component) Close(context.Context) error {
	if c.end == nil {
		return nil
	}
	c.end()
	c.running.Wait()
	return c.results.Close()
}
