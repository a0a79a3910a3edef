// Package jsonrpc serves an owner's functions and tasks over JSON-RPC 2.0. Package models serves tensors as files.
//
//	POST /jsonrpc                                    {"jsonrpc":"2.0","id":1,"method":"call_function","params":{"name":"transform","kwargs":{"scale":2}}}
//	GET  /v1/results/ID                              the bytes of a result tensor, until it expires
//
// See [Component] for its use in the gateway.
//
// # Tensors in JSON
//
// A tensor is an object with the single key "$tensor":
//
//	{"$tensor": {"dtype": "float32", "shape": [2, 2], "data": "<base64 of its bytes, row-major, little-endian>"}}
//	{"$tensor": {"dtype": "float32", "values": [[1, 2], [3, 4]]}}
//	{"$tensor": {"model": "llm", "name": "lm_head.weight", "version": 3}}
//	{"$tensor": {"dtype": "float32", "shape": [2, 2], "url": "https://…", "sha256": "<hex>"}}
//
// Arguments may use any of these forms. Results use the first form, or the last with a URL of this gateway if the
// caller sets "tensors": "url". All tensors of a model, and state dicts in results, are {"$state_dict": …}. Bytes are
// {"$bytes": "<base64>"}. Floating-point numbers that JSON cannot represent are {"$float": "NaN"}, "Infinity" or
// "-Infinity".
//
// # Outcome of a failed call
//
// A call runs at most once. If the owner leaves or the deadline expires after a call was sent, the function may have
// run, and the error's data has "outcome": "unknown". The outcome is "failed" if the function returned the error, and
// "not_run" otherwise.
package jsonrpc

import (
	"context"
	"net/http"

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

	env     *gateway.Env
	dev     driver.Device // memory for received tensors
	results resultStore
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
	c.results = newResultStore(int64(c.MaxResults))
	h := &rpcHandler{Component: c, methods: c.rpcMethods()}
	env.HTTP.Handle("/jsonrpc", h)
	env.HTTP.Handle("GET /v1/results/{id}", http.HandlerFunc(c.serveResult))
	env.HTTP.Handle("DELETE /v1/results/{id}", http.HandlerFunc(c.deleteResult))
	return nil
}

// Close implements gateway.Component.
func (c *Component) Close(context.Context) error {
	return c.results.Close()
}
