package endpoint

import (
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// Option says how an endpoint runs.
type Option func(*engine.Definition) error

// applyOptions sets the registry's options and then the endpoint's own, which go before, and checks them together.
// Afterwards cached says whether results are kept.
func applyOptions(d *engine.Definition, defaults, own []Option) error {
	o := &d.Options
	if err := setOptions(d, defaults); err != nil {
		return fmt.Errorf("an option of the registry: %w", err)
	}
	byDefault := o.Cached && !o.NoCache || o.CacheKey != nil
	defaultKey := o.CacheKey
	o.Cached, o.NoCache, o.CacheKey = false, false, nil
	if err := setOptions(d, own); err != nil {
		return err
	}
	switch {
	case o.NoCache && o.CacheKey != nil:
		return fmt.Errorf("%w: it has a cache key and no cache", status.ErrInvalid)
	case o.NoCache && o.Cached:
		return fmt.Errorf("%w: it is cached and has no cache", status.ErrInvalid)
	case d.Stream != nil && (o.Task || o.Managed || o.Cached || o.CacheKey != nil):
		return fmt.Errorf("%w: a stream is neither a task nor managed nor cached", status.ErrInvalid)
	}
	asked := o.Cached || o.Managed || o.CacheKey != nil
	o.Cached = d.Stream == nil && !o.NoCache && (asked || byDefault)
	if o.Cached && o.CacheKey == nil {
		o.CacheKey = defaultKey
	}
	return nil
}

// setOptions applies the options one after the other.
func setOptions(d *engine.Definition, opts []Option) error {
	for _, opt := range opts {
		if opt == nil {
			return fmt.Errorf("%w: an option is nil", status.ErrInvalid)
		}
		if err := opt(d); err != nil {
			return err
		}
	}
	return nil
}

// Task runs calls of the endpoint as tasks: they wait for a worker and can be asked after. A plain call of it waits for
// the task, and cancels it if the caller does not wait any more; what was submitted outlives its caller's connection.
func Task() Option {
	return func(d *engine.Definition) error { d.Options.Task = true; return nil }
}

// Managed makes results managed objects: the server keeps them as long as any session has a reference, and for as long
// equal calls get the same object, as with [Cached]. With [NoCache] each call makes an object of its own.
func Managed() Option {
	return func(d *engine.Definition) error { d.Options.Managed = true; return nil }
}

// Cached keeps a result and hands it to whoever calls with the same arguments; calls that come while it is being made
// wait for it. Nobody writes to the tensors of such a result any more, the function included. Streams are never cached.
func Cached() Option {
	return func(d *engine.Definition) error { d.Options.Cached = true; return nil }
}

// NoCache runs the function at each call, which is so for any endpoint that does not ask for more: it is for one that
// is [Managed], and for those of a registry whose endpoints are cached.
func NoCache() Option {
	return func(d *engine.Definition) error { d.Options.NoCache = true; return nil }
}

// NoSingleFlight lets equal calls of a cached endpoint at the same time run side by side; the last result is kept.
func NoSingleFlight() Option {
	return func(d *engine.Definition) error { d.Options.NoSingleFlight = true; return nil }
}

// WritableArguments maps the tensors of arguments writable where their owner allows it, for functions that fill them in
// place.
func WritableArguments() Option {
	return func(d *engine.Definition) error { d.Options.Writable = true; return nil }
}

// CacheKey is [Cached] with a key made of a template such as "model:{hidden_size}": the words in braces are fields of
// the argument, dots go down into structs. Calls with the same key share a result whatever else their arguments are;
// different values of the fields never make the same key, whatever text stands between them. A field that the argument
// does not have is an error at registration.
func CacheKey(text string) Option {
	return func(d *engine.Definition) (err error) {
		d.Options.CacheKey, err = codec.ParseTemplate(text, d.In)
		return err
	}
}

// Serialized lets one run of the endpoint wait for the other.
func Serialized() Option { return SerializedBy("") }

// SerializedBy lets runs with the same key wait for each other; the template is as for [CacheKey].
func SerializedBy(text string) Option {
	return func(d *engine.Definition) (err error) {
		d.Options.Serialized, err = codec.ParseTemplate(text, d.In)
		return err
	}
}

// Timeout bounds each run of the endpoint.
func Timeout(limit time.Duration) Option {
	return func(d *engine.Definition) error {
		if limit <= 0 {
			return fmt.Errorf("%w: a timeout of %v", status.ErrInvalid, limit)
		}
		d.Options.Timeout = limit
		return nil
	}
}
