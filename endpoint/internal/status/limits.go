package status

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Limit is the name of a limit in server infos, in metric labels and in PROTOCOL.md.
type Limit string

// The limits on the resources of clients.
const (
	LimitClients        Limit = "clients"
	LimitSubscriptions  Limit = "leases"
	LimitObjects        Limit = "references"
	LimitObjectBytes    Limit = "object_bytes"
	LimitReleases       Limit = "releases"
	LimitTasks          Limit = "tasks"
	LimitVersions       Limit = "versions"
	LimitStorages       Limit = "storages"
	LimitStorageBytes   Limit = "storage_bytes"
	LimitManifestBytes  Limit = "manifest_bytes"
	LimitPlacementBytes Limit = "placement_bytes"
	LimitParts          Limit = "parts"
	LimitPartTime       Limit = "part_seconds"
	LimitSourceSize     Limit = "source_bytes"
	LimitLabelSize      Limit = "label_bytes"
	LimitRequests       Limit = "requests"
	LimitRequestBytes   Limit = "request_bytes"
	LimitAnswerBytes    Limit = "answer_bytes"
	LimitDescriptors    Limit = "descriptors"
	LimitRequestTime    Limit = "request_seconds"
	LimitResultBytes    Limit = "result_bytes"
	LimitTaskBytes      Limit = "task_result_bytes"
	LimitKept           Limit = "kept_mappings"
	LimitKeptBytes      Limit = "kept_bytes"
	LimitOffers         Limit = "offers"
	LimitOfferBytes     Limit = "offer_bytes"
	LimitWorkerCalls    Limit = "worker_calls"
	LimitWorkerTime     Limit = "worker_seconds"
	LimitRingBytes      Limit = "ring_bytes"
	LimitLogLines       Limit = "log_lines"
	LimitAuditLines     Limit = "audit_lines"
)

// Limits are a server's limits on its clients. Package endpoint declares the same type with its documentation and
// defaults.
type Limits struct {
	Wire                            wire.Limits   // frames
	Clients                         int           // connections
	Requests                        int           // in flight
	RequestTime                     time.Duration // of one request; 0 for no limit
	RequestBytes, RequestBytesTotal int64         // of requests in flight
	AnswerBytes, AnswerBytesTotal   int64         // of unread answers
	Descriptors                     int           // in flight
	Subscriptions                   int           // leases and watched names
	Objects                         int           // references to managed objects
	KeptBytes, KeptBytesTotal       int64         // of mappings that are kept for arguments, and for results
	RingBytesTotal                  int64         // of rings
	ObjectBytes, ObjectBytesTotal   int64         // of managed objects, and of results until they are sent
	Offers, OffersTotal             int           // offered endpoints
	OfferBytes, OfferBytesTotal     int64         // of their descriptions
	WorkerCalls                     int           // unanswered by a worker
	WorkerTime                      time.Duration // of a call to a worker; 0 for no limit
	Idle                            time.Duration // of a client without resources; 0 for no limit
	Tasks                           int           // unfinished
	Publish, PublishTotal           PublishLimits // publications
	PlacementBytes                  int64         // of placements of one client; 0 for no limit but the budgets
	PartTime                        time.Duration // of an incomplete version
}

// PublishLimits limit publications.
type PublishLimits = struct {
	Versions, Storages   int   // of all names
	Bytes, ManifestBytes int64 // of the storages; cost of the manifests
}

// Refusals counts refusals by limit.
type Refusals struct{ by map[Limit]*atomic.Uint64 }

// NewRefusals returns counters for the given limits.
func NewRefusals(names ...Limit) Refusals {
	r := Refusals{by: map[Limit]*atomic.Uint64{}}
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
		r.Add(LimitTasks)
	}
}

// Add counts one refusal.
func (r Refusals) Add(name Limit) {
	if n := r.by[name]; n != nil {
		n.Add(1)
	}
}

// overLimit is the error for a reached limit. It is counted when it is sent.
type overLimit struct {
	limit Limit
	err   error
}

func (o *overLimit) Error() string { return o.err.Error() }

func (o *overLimit) Unwrap() []error { return []error{ErrLimit, o.err} }

// Exceeded returns the error for a reached limit.
func Exceeded(limit Limit, format string, args ...any) error {
	return &overLimit{limit, fmt.Errorf("%w: "+format, append([]any{ErrLimit}, args...)...)}
}

// Of returns the number of refusals due to a limit.
func (r Refusals) Of(name Limit) uint64 { return r.by[name].Load() }

// The maximum sizes in bytes of texts from peers.
const (
	MaxLabelBytes  = 64   // label
	MaxSourceBytes = 1024 // source of a publication
	MaxReasonBytes = 256  // reason for a cancellation
)

// ShortLabel returns a label that is safe to store and display.
func ShortLabel(label string) string { return ShortText(label, MaxLabelBytes) }

// ShortText returns the printable characters of a text, truncated to limit bytes. Bytes that are not UTF-8 are escaped,
// as by [message.ValidText]. The result is a copy and does not keep the original text in memory.
func ShortText(text string, limit int) string {
	var b strings.Builder
	for _, r := range message.ValidText(text) {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			continue
		}
		if b.Len()+utf8.RuneLen(r) > limit {
			break
		}
		b.WriteRune(r)
	}
	return strings.Clone(b.String())
}
