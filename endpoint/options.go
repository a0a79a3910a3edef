package endpoint

import (
	"fmt"
	"time"
)

// options are how an endpoint runs.
type options struct {
	task, managed, noCache, noSingleFlight, writable bool

	cacheKey   *template // nil for a key of all arguments
	serialized *template // nil for runs that do not wait for each other
	timeout    time.Duration
}

// Option says how an endpoint runs.
type Option func(*definition) error

// apply sets the options one after the other and checks them together.
func (o *options) apply(d *definition, opts []Option) error {
	for _, opt := range opts {
		if opt == nil {
			return fmt.Errorf("%w: an option is nil", ErrInvalid)
		}
		if err := opt(d); err != nil {
			return err
		}
	}
	switch {
	case o.noCache && o.cacheKey != nil:
		return fmt.Errorf("%w: it has a cache key and no cache", ErrInvalid)
	case d.stream != nil && (o.task || o.managed || o.cacheKey != nil):
		return fmt.Errorf("%w: a stream is neither a task nor managed nor cached", ErrInvalid)
	}
	if d.stream != nil {
		o.noCache = true
	}
	return nil
}

// Task runs calls of the endpoint as tasks: they wait for a worker and can be asked after. A plain call of it waits for the task, and cancels
// it if the caller does not wait any more; what was submitted outlives its caller's connection.
func Task() Option {
	return func(d *definition) error { d.options.task = true; return nil }
}

// Managed makes results managed objects: the server keeps them as long as any session has a reference.
func Managed() Option {
	return func(d *definition) error { d.options.managed = true; return nil }
}

// NoCache runs the function at each call.
func NoCache() Option {
	return func(d *definition) error { d.options.noCache = true; return nil }
}

// NoSingleFlight lets equal calls at the same time run side by side; the last result is cached.
func NoSingleFlight() Option {
	return func(d *definition) error { d.options.noSingleFlight = true; return nil }
}

// WritableArguments maps the tensors of arguments writable where their owner allows it, for functions that fill them in place.
func WritableArguments() Option {
	return func(d *definition) error { d.options.writable = true; return nil }
}

// CacheKey makes a cache key of a template such as "model:{hidden_size}": the words in braces are fields of the argument, dots go down
// into structs. Calls with the same key share a result whatever else their arguments are; different values of the fields never make the same
// key, whatever text stands between them. A field that the argument does not
// have is an error at registration. Without this option the key is made of all arguments.
func CacheKey(text string) Option {
	return func(d *definition) (err error) {
		d.options.cacheKey, err = parseTemplate(text, d.in)
		return err
	}
}

// Serialized lets one run of the endpoint wait for the other.
func Serialized() Option { return SerializedBy("") }

// SerializedBy lets runs with the same key wait for each other; the template is as for [CacheKey].
func SerializedBy(text string) Option {
	return func(d *definition) (err error) {
		d.options.serialized, err = parseTemplate(text, d.in)
		return err
	}
}

// Timeout bounds each run of the endpoint.
func Timeout(limit time.Duration) Option {
	return func(d *definition) error {
		if limit <= 0 {
			return fmt.Errorf("%w: a timeout of %v", ErrInvalid, limit)
		}
		d.options.timeout = limit
		return nil
	}
}
