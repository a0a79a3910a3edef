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
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Definition is one endpoint.
type Definition struct {
	Name    string       // of the endpoint
	In, Out reflect.Type // of its argument and its result
	Options options      // how it runs

	// Describe says what it is, where that is not to be seen from In and Out; nil for most.
	Describe func() message.EndpointInfo
	// Decode makes the argument, a pointer to In, and returns what has to be closed when it is done with.
	Decode func(raw message.RawMessage, storages []*tensor.Storage) (any, []interface{ Close() error }, error)
	// Invoke calls the function.
	Invoke func(ctx context.Context, in any) (any, error)
	// Stream calls a function whose results come one by one; nil for others.
	Stream func(ctx context.Context, in any, send func(any) error) error

	Calls      atomic.Uint64 // also of tasks and streams
	Hits       atomic.Uint64 // calls with a result that was there, or that another call's run made
	Failures   atomic.Uint64 // calls that ended with an error
	Latency    latency       // of runs
	Uncached   atomic.Uint64 // calls that were not cached because of the memory of their arguments
	RecentTime peakEWMA      // duration of recent calls
}

// Workers is how many clients run the function; 0 where the server does.
func (d *Definition) Workers() int {
	if d.Describe == nil {
		return 0
	}
	return len(d.Describe().Workers)
}

// Streams reports whether the results come one by one.
func (d *Definition) Streams() bool { return d.Stream != nil }

// options are how an endpoint runs.
type options struct {
	Task, Managed, Cached, NoCache, NoSingleFlight, Writable bool

	CacheKey   *codec.Template // nil for a key of all arguments
	Serialized *codec.Template // nil for runs that do not wait for each other
	Timeout    time.Duration
}

// Key is the cache key of a call; false where its result must not be cached: an argument holds memory that somebody may
// still write, so that equal arguments would not mean equal bytes.
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
		if known, ok := s.Memory().(driver.Identifier); ok && name == "" {
			name, _ = known.Identity()
		}
		if name == "" {
			return cache.Key{}, false
		}
		fmt.Fprintf(h, "%d:%s", len(name), name)
	}
	return cache.Key{Group: d.Name, ID: "arguments:" + hex.EncodeToString(h.Sum(nil))}, true
}

// Plain reports whether nobody but its caller gets a result of the endpoint.
func (d *Definition) Plain() bool {
	return !d.Options.Cached && !d.Options.Managed && !d.Options.Task && d.Stream == nil
}
