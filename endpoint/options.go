package endpoint

import (
	"fmt"
	"reflect"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Option configures an endpoint.
type Option interface {
	apply(*engine.Definition) error
}

type option func(*engine.Definition) error

func (o option) apply(d *engine.Definition) error { return o(d) }

// applyOptions applies the registry's options and then the endpoint's, which take precedence, and validates the result.
// It sets cached if results are cached.
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
		return fmt.Errorf("%w: CacheKey and NoCache exclude each other", status.ErrInvalid)
	case o.NoCache && o.Cached:
		return fmt.Errorf("%w: Cached and NoCache exclude each other", status.ErrInvalid)
	case d.Stream != nil && (o.Task || o.Managed || o.Cached || o.CacheKey != nil):
		return fmt.Errorf("%w: a stream cannot be a task, managed or cached", status.ErrInvalid)
	}
	asked := o.Cached || o.Managed || o.CacheKey != nil
	o.Cached = d.Stream == nil && !o.NoCache && (asked || byDefault)
	if o.Cached && o.CacheKey == nil {
		o.CacheKey = defaultKey
	}
	return nil
}

func setOptions(d *engine.Definition, opts []Option) error {
	for _, opt := range opts {
		if opt == nil {
			return fmt.Errorf("%w: an option is nil", status.ErrInvalid)
		}
		if err := opt.apply(d); err != nil {
			return err
		}
	}
	return nil
}

// AsTask runs calls of the endpoint as tasks, which are queued for a worker and can be queried by id. A plain call waits
// for its task and cancels it if the caller leaves. A submitted task outlives its caller's connection.
func AsTask() Option {
	return option(func(d *engine.Definition) error { d.Options.Task = true; return nil })
}

// Managed makes results managed objects. The server keeps an object while any session has a reference to it. Until
// then, equal calls return the same object, as with [Cached]. With [NoCache] each call creates a new object.
func Managed() Option {
	return option(func(d *engine.Definition) error { d.Options.Managed = true; return nil })
}

// Cached caches results by the argument. Calls that arrive while the function runs wait for its result. Tensors of a
// cached result must not be written, not even by the function. Streams are never cached.
func Cached() Option {
	return option(func(d *engine.Definition) error { d.Options.Cached = true; return nil })
}

// NoCache turns off caching for the endpoint of a server that caches by default. With [Managed], each call creates a new
// object.
func NoCache() Option {
	return option(func(d *engine.Definition) error { d.Options.NoCache = true; return nil })
}

// NoSingleFlight lets equal concurrent calls of a cached endpoint run in parallel. The last result is cached.
func NoSingleFlight() Option {
	return option(func(d *engine.Definition) error { d.Options.NoSingleFlight = true; return nil })
}

// WritableArguments maps the tensors of arguments writable if their owner permits it, for functions that fill them in
// place.
func WritableArguments() Option {
	return option(func(d *engine.Definition) error { d.Options.Writable = true; return nil })
}

// CacheKey is [Cached] with a key made from a template such as "model:{hidden_size}". Names in braces are fields of the
// argument; dots select fields of nested structs. Calls with equal keys share a result, even if other fields differ.
// Different field values never produce the same key. Registration fails if the argument has no such field.
func CacheKey(text string) Option {
	return option(func(d *engine.Definition) (err error) {
		d.Options.CacheKey, err = codec.ParseTemplate(text, d.In)
		return err
	})
}

// Serialized runs the endpoint's function once at a time.
func Serialized() Option { return SerializedBy("") }

// SerializedBy runs calls with the same key one at a time. The template is as in [CacheKey].
func SerializedBy(text string) Option {
	return option(func(d *engine.Definition) (err error) {
		d.Options.Serialized, err = codec.ParseTemplate(text, d.In)
		return err
	})
}

// ArgumentTensor declares the argument of a function whose argument is a tensor, such as "float32[-1,3]": a dtype, the
// sizes of the dimensions with -1 for any size, or both. Fields of structs have the tag tensor:"float32[-1,3]". Callers
// read the declaration in [EndpointInfo]; the gateway's inference protocol reports it and refuses other tensors. Calls
// over the socket are not checked.
func ArgumentTensor(spec string) Option {
	return option(func(d *engine.Definition) (err error) {
		d.Options.InTensor, err = wholeTensor("argument", d.In, spec)
		return err
	})
}

// ResultTensor declares the result of a function whose result is a tensor, as [ArgumentTensor] does.
func ResultTensor(spec string) Option {
	return option(func(d *engine.Definition) (err error) {
		d.Options.OutTensor, err = wholeTensor("result", d.Out, spec)
		return err
	})
}

func wholeTensor(what string, t reflect.Type, spec string) (string, error) {
	if t != reflect.TypeFor[*tensor.Tensor]() {
		return "", fmt.Errorf("%w: the %s is %s, no *tensor.Tensor: use the tag tensor of its fields", status.ErrInvalid, what, codec.TypeName(t))
	}
	s, err := codec.ParseTensorSpec(spec)
	return s.String(), err
}

// Batch permits callers to join up to max requests into one call: the tensors of the argument are concatenated along
// their first dimension, and the tensors of the result are split along theirs. A request waits up to delay for others.
// The function must treat rows independently and return as many rows as it received. The gateway joins requests of its
// inference protocol. Other callers do not.
func Batch(max int, delay time.Duration) Option {
	return option(func(d *engine.Definition) error {
		if max < 2 || delay < 0 {
			return fmt.Errorf("%w: batches of %d requests within %v", status.ErrInvalid, max, delay)
		}
		if d.Stream != nil {
			return fmt.Errorf("%w: a stream cannot be batched", status.ErrInvalid)
		}
		d.Options.BatchMax, d.Options.BatchDelay = max, delay
		return nil
	})
}

// Timeout limits each run of the endpoint's function.
func Timeout(limit time.Duration) Option {
	return option(func(d *engine.Definition) error {
		if limit <= 0 {
			return fmt.Errorf("%w: a timeout of %v", status.ErrInvalid, limit)
		}
		d.Options.Timeout = limit
		return nil
	})
}
