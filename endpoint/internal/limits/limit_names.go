// Package limits defines the names of the limits on clients' resources, and the error for exceeding one.
package limits

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/task"
)

// Name is the name of a limit in server infos, in metric labels and in PROTOCOL.md.
type Name string

// The limits on the resources of clients.
const (
	Clients       Name = "clients"
	Subscriptions Name = "leases"
	Objects       Name = "references"
	ObjectBytes   Name = "object_bytes"
	Releases      Name = "releases"
	Tasks         Name = "tasks"
	Versions      Name = "versions"
	Storages      Name = "storages"
	StorageBytes  Name = "storage_bytes"
	ManifestBytes Name = "manifest_bytes"
	SourceSize    Name = "source_bytes"
	LabelSize     Name = "label_bytes"
	Requests      Name = "requests"
	RequestBytes  Name = "request_bytes"
	AnswerBytes   Name = "answer_bytes"
	Descriptors   Name = "descriptors"
	RequestTime   Name = "request_seconds"
	ResultBytes   Name = "result_bytes"
	TaskBytes     Name = "task_result_bytes"
	KeptStorages  Name = "kept_storages"
	KeptBytes     Name = "kept_bytes"
	Slabs         Name = "slabs"
	SlabBytes     Name = "slab_bytes"
	Offers        Name = "offers"
	OfferBytes    Name = "offer_bytes"
	WorkerCalls   Name = "worker_calls"
	WorkerTime    Name = "worker_seconds"
	RingBytes     Name = "ring_bytes"
)

// Refusals counts refusals by limit.
type Refusals struct{ by map[Name]*atomic.Uint64 }

// NewRefusals returns counters for the given limits.
func NewRefusals(names ...Name) Refusals {
	r := Refusals{by: map[Name]*atomic.Uint64{}}
	for _, name := range names {
		r.by[name] = new(atomic.Uint64)
	}
	return r
}

// Count counts an error response if it is due to a limit.
func (r Refusals) Count(err error) {
	var o *overLimit
	switch {
	case errors.As(err, &o):
		r.Add(o.limit)
	case errors.Is(err, task.ErrCapacity):
		r.Add(Tasks)
	}
}

// Add counts one refusal.
func (r Refusals) Add(name Name) {
	if n := r.by[name]; n != nil {
		n.Add(1)
	}
}

// overLimit is the error for a reached limit. It is counted when it is sent.
type overLimit struct {
	limit Name
	err   error
}

func (o *overLimit) Error() string { return o.err.Error() }

func (o *overLimit) Unwrap() []error { return []error{status.ErrLimit, o.err} }

// Exceeded returns the error for a reached limit.
func Exceeded(limit Name, format string, args ...any) error {
	return &overLimit{limit, fmt.Errorf("%w: "+format, append([]any{status.ErrLimit}, args...)...)}
}

// Of returns the number of refusals due to a limit.
func (r Refusals) Of(name Name) uint64 { return r.by[name].Load() }
