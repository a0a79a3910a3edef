package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/cache"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Definition describes one endpoint and holds its counters.
type Definition struct {
	Name    string       // of the endpoint
	In, Out reflect.Type // types of the argument and the result
	Options options      // of the registration

	// Describe returns the description of the endpoint. If it is nil, the description is derived from In and Out.
	Describe func() message.EndpointInfo
	// Decode decodes the argument, a pointer to In. It also returns the values to close after the call.
	Decode func(raw message.RawMessage, storages []*tensor.Storage) (any, []interface{ Close() error }, error)
	// Invoke calls the function.
	Invoke func(ctx context.Context, in any) (any, error)
	// Stream calls a function that returns a stream of results. It is nil for other functions.
	Stream func(ctx context.Context, in any, send func(any) error) error

	Calls      atomic.Uint64 // including tasks and streams
	Hits       atomic.Uint64 // calls that were answered from the cache or by another call's run
	Failures   atomic.Uint64 // calls that returned an error
	Latency    latency       // of runs
	Uncached   atomic.Uint64 // calls that were not cached because of the memory of their arguments
	RecentTime peakEWMA      // duration of recent calls
}

// Workers returns the number of clients that run the function, or 0 if the server runs it.
func (d *Definition) Workers() int {
	if d.Describe == nil {
		return 0
	}
	return len(d.Describe().Workers)
}

// Streams reports whether the endpoint returns a stream of results.
func (d *Definition) Streams() bool { return d.Stream != nil }

// options are the settings of an endpoint.
type options struct {
	Task, Managed, Cached, NoCache, NoSingleFlight, Writable bool

	CacheKey   *codec.Template // nil for a key of all arguments
	Serialized *codec.Template // nil if runs are not serialized
	Timeout    time.Duration

	InTensor, OutTensor string // declarations of whole values
	BatchMax            int    // requests that callers may join; 0 for none
	BatchDelay          time.Duration
}

// Key returns the cache key of a call. It returns false if the result must not be cached: memory in the arguments may
// still be written, so equal arguments do not imply equal bytes.
func (d *Definition) Key(a *Arguments) (cache.Key, bool) {
	if !d.Options.Cached {
		return cache.Key{}, false
	}
	if t := d.Options.CacheKey; t != nil {
		return cache.Key{Group: d.Name, ID: t.Expand(reflect.ValueOf(a.Value).Elem())}, true
	}
	h := sha256.New()
	fmt.Fprintf(h, "%d:", len(a.raw))
	h.Write(a.raw)
	for i, s := range a.Storages {
		name := a.names[i]
		if name == "" {
			if d, err := s.Memory().Describe(); err == nil {
				name = d.Identity
			}
		}
		if name == "" {
			return cache.Key{}, false
		}
		fmt.Fprintf(h, "%d:%s", len(name), name)
	}
	return cache.Key{Group: d.Name, ID: "arguments:" + hex.EncodeToString(h.Sum(nil))}, true
}

// Plain reports whether each result of the endpoint has a single receiver, its caller.
func (d *Definition) Plain() bool {
	return !d.Options.Cached && !d.Options.Managed && !d.Options.Task && d.Stream == nil
}

// Info returns the description of the endpoint for clients.
func (d *Definition) Info() message.EndpointInfo {
	if d.Describe != nil {
		info := d.Describe()
		info.Uncached = d.Uncached.Load()
		return info
	}
	o := d.Options
	info := message.EndpointInfo{
		Name: d.Name, Task: o.Task, Managed: o.Managed, Stream: d.Stream != nil, Cache: o.Cached, SingleFlight: o.Cached && !o.NoSingleFlight,
		Serialized: o.Serialized != nil, Writable: o.Writable, Timeout: int64(o.Timeout), In: codec.Clipped(codec.TypeName(d.In)), Out: codec.Clipped(codec.TypeName(d.Out)),
		InFields: codec.DescribeFields(d.In), OutFields: codec.DescribeFields(d.Out), Uncached: d.Uncached.Load(),
		InTensor: o.InTensor, OutTensor: o.OutTensor, BatchMax: uint64(o.BatchMax), BatchDelay: int64(o.BatchDelay),
	}
	if o.CacheKey != nil {
		info.CacheKey = o.CacheKey.Text
	}
	return info
}

type sendKey struct{}

// sendFunc sends one item of a stream and takes its tensors. It waits for the reader until ctx ends.
type sendFunc = func(ctx context.Context, item any) error

// WithSend returns a context in which a stream function passes its items to send.
func WithSend(ctx context.Context, send sendFunc) context.Context {
	return context.WithValue(ctx, sendKey{}, send)
}

// InvokeStream returns the Invoke function of a definition with a Stream. It passes items to the function set by
// WithSend, with the context of the run, so that the endpoint's time limit also applies to waiting for the reader.
func InvokeStream(d *Definition) func(context.Context, any) (any, error) {
	return func(ctx context.Context, in any) (any, error) {
		send := ctx.Value(sendKey{}).(sendFunc)
		return nil, d.Stream(ctx, in, func(item any) error { return send(ctx, item) })
	}
}
