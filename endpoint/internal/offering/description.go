package offering

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"
	"unicode"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// description is a worker's validated description of an endpoint.
type description struct {
	info    message.EndpointInfo
	encoded []byte // endpoints with equal bytes are the same endpoint
}

// describe validates a worker's description of an endpoint and copies the fields that the server uses.
func describe(in message.EndpointInfo) (description, error) {
	if err := catalog.CheckName(in.Name); err != nil {
		return description{}, fmt.Errorf("offer %s: %w", status.Shown(in.Name), refused("%w", err))
	}
	info := message.EndpointInfo{
		Name: in.Name, Task: in.Task, Managed: in.Managed, Stream: in.Stream, Cache: in.Cache, SingleFlight: in.SingleFlight && in.Cache,
		Serialized: in.Serialized, Timeout: in.Timeout, In: in.In, Out: in.Out, InFields: in.InFields, OutFields: in.OutFields,
		InTensor: in.InTensor, OutTensor: in.OutTensor, BatchMax: in.BatchMax, BatchDelay: in.BatchDelay,
	}
	if err := check(&in); err != nil {
		return description{}, fmt.Errorf("offer %q: %w", in.Name, err)
	}
	encoded, err := message.Marshal(&info)
	return description{info, encoded}, err
}

// refused is the error of an invalid description.
func refused(format string, args ...any) error {
	return status.Configuration(fmt.Errorf("%w: "+format, append([]any{status.ErrInvalid}, args...)...))
}

// check validates a description.
func check(in *message.EndpointInfo) error {
	switch {
	case in.Stream && (in.Task || in.Managed || in.Cache):
		return refused("a stream cannot be a task, managed or cached")
	case in.CacheKey != "":
		return refused("the owner does not know its types, and has keys of all arguments only: offer it without the cache key %s",
			status.Shown(in.CacheKey))
	case in.Timeout < 0:
		return refused("a timeout of %v", time.Duration(in.Timeout))
	case in.BatchDelay < 0 || in.BatchMax > math.MaxInt32:
		return refused("batches of %d within %v", in.BatchMax, time.Duration(in.BatchDelay))
	}
	for _, text := range []string{in.InTensor, in.OutTensor} {
		if err := checkSpec(text); err != nil {
			return err
		}
	}
	for _, text := range []string{in.In, in.Out} {
		if err := checkText(text); err != nil {
			return err
		}
	}
	for _, fields := range [][]message.FieldInfo{in.InFields, in.OutFields} {
		left := codec.DescribedFields
		if err := checkFields(fields, codec.DescribedDepth, &left); err != nil {
			return err
		}
	}
	return nil
}

// checkText validates the name of a field or a type.
func checkText(text string) error {
	if len(text) > codec.DescribedBytes+len("…") || strings.ContainsFunc(text, unicode.IsControl) {
		return refused("the name %s in its description: at most %d printable bytes", status.Shown(text), codec.DescribedBytes)
	}
	return nil
}

// checkSpec validates the declaration of a tensor, which may be empty.
func checkSpec(text string) error {
	if text == "" {
		return nil
	}
	if _, err := codec.ParseTensorSpec(text); err != nil {
		return refused("its description: %w", err)
	}
	return nil
}

func checkFields(list []message.FieldInfo, depth int, left *int) error {
	if len(list) > 0 && depth == 0 {
		return refused("its description has fields in more than %d levels", codec.DescribedDepth)
	}
	seen := map[string]bool{}
	for _, f := range list {
		if *left--; *left < 0 {
			return refused("its description has more than %d fields", codec.DescribedFields)
		}
		switch {
		case f.Name == "":
			return refused("its description has a field without a name")
		case seen[f.Name]:
			return refused("its description has the field %s twice", status.Shown(f.Name))
		}
		seen[f.Name] = true
		for _, text := range []string{f.Name, f.Type} {
			if err := checkText(text); err != nil {
				return err
			}
		}
		if err := checkSpec(f.Tensor); err != nil {
			return err
		}
		if err := checkFields(f.Fields, depth-1, left); err != nil {
			return err
		}
	}
	return nil
}

// describeAll validates the descriptions of an offer. It returns them and their total size.
func describeAll(list []message.EndpointInfo) (out []description, bytes int64, err error) {
	if len(list) == 0 {
		return nil, 0, refused("the offer has no endpoints")
	}
	seen := map[string]bool{}
	for _, in := range list {
		d, err := describe(in)
		if err != nil {
			return nil, 0, err
		}
		if seen[d.info.Name] {
			return nil, 0, fmt.Errorf("offer %q: %w: the offer contains it twice", d.info.Name, status.ErrRegistered)
		}
		seen[d.info.Name] = true
		bytes += int64(len(d.encoded))
		out = append(out, d)
	}
	return out, bytes, nil
}

// Arguments are the arguments of a call as they are sent to the worker.
type Arguments struct {
	// Raw is their encoding.
	Raw message.RawMessage
	// Storages are the storages that Raw refers to. Borrowed while the call runs.
	Storages []*tensor.Storage
}

// define returns the engine's definition of the endpoint, whose function sends calls to workers.
func (e *endpoint) define() *engine.Definition {
	in := &e.info
	d := &engine.Definition{Name: in.Name, In: reflect.TypeFor[any](), Out: reflect.TypeFor[any](), Describe: e.describe, Decode: decodeArguments}
	d.Options.Task, d.Options.Managed = in.Task, in.Managed
	d.Options.Cached, d.Options.NoSingleFlight = in.Cache, in.Cache && !in.SingleFlight
	d.Options.Timeout = time.Duration(in.Timeout)
	if in.Stream {
		d.Stream = e.stream
		d.Invoke = engine.InvokeStream(d)
	} else {
		d.Invoke = e.call
	}
	return d
}

// decodeArguments validates the references in arguments against their storages, so that workers get only valid ones.
func decodeArguments(raw message.RawMessage, storages []*tensor.Storage) (any, []interface{ Close() error }, error) {
	if err := codec.CheckForwarded(raw, storages); err != nil {
		return nil, nil, err
	}
	var in any = &Arguments{Raw: raw, Storages: storages}
	return &in, nil, nil
}

// describe returns the description of the endpoint with its workers.
func (e *endpoint) describe() message.EndpointInfo {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	info := e.info
	for _, o := range e.offers {
		about := o.worker.about
		about.Running, about.Most = uint64(o.running), uint64(o.slots)
		info.Workers = append(info.Workers, about)
	}
	return info
}

// countLocked returns an error if an offer with that many endpoints and bytes exceeds a limit.
func (t *Table) countLocked(w *Worker, endpoints int, bytes int64) error {
	b := &t.Limits
	switch {
	case w.offered+endpoints > b.Offers:
		return status.Exceeded(status.LimitOffers, "this client offers %d endpoints, %d more would be beyond %d", w.offered, endpoints, b.Offers)
	case t.offered+endpoints > b.OffersTotal:
		return status.Exceeded(status.LimitOffers, "workers offer %d endpoints, %d more would be beyond %d", t.offered, endpoints, b.OffersTotal)
	case w.bytes+bytes > b.OfferBytes:
		return status.Exceeded(status.LimitOfferBytes, "the descriptions of the endpoints that this client offers would have %d bytes, and may have %d", w.bytes+bytes, b.OfferBytes)
	case t.bytes+bytes > b.OfferBytesTotal:
		return status.Exceeded(status.LimitOfferBytes, "the descriptions of all endpoints that workers offer would have %d bytes, and may have %d", t.bytes+bytes, b.OfferBytesTotal)
	}
	return nil
}
