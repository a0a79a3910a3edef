package rights

import (
	"fmt"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
)

// Set holds the rights that the policy of a gateway gives an identity. It does not change: a new policy creates new sets.
type Set struct {
	// Grants are the rights to models and functions, and access.Info, the right to read the status of the gateway.
	Grants access.Grants
	// Metrics is the right to read metrics.
	Metrics bool
	// Control is the right to change what the gateway does for all clients: to load and unload functions, and to
	// register shared memory.
	Control bool
	// Read and Write contain the NATS subjects of the bins, queues and runs that the identity may read and change.
	// Write includes Read.
	Read, Write []string
	// Quota limits the resources of the identity.
	Quota Quota
	// Text describes the rights. Sets with equal texts are equal.
	Text string
}

// Quota limits one identity, in addition to the limits of the gateway. Zero fields mean no quota.
type Quota struct {
	// InFlight limits the bytes of unprocessed requests, and Uploads the bytes of models and arguments in transfer.
	InFlight, Uploads int64
	// Requests limits the requests per second. A burst of as many is admitted at once.
	Requests float64
	// Leases limits the leases of versions.
	Leases int64
	// Message limits a message or a body that is held in memory. It may exceed the limit of the gateway. 0 means that limit.
	Message int64
}

// MaxMessage is the largest quota of a message.
const MaxMessage = 100 << 20

// MessageLimit returns the limit of a message of the identity, at a gateway with the given limit.
func (id Identity) MessageLimit(limit int64) int64 {
	if own := id.Quota().Message; own > 0 {
		return own
	}
	return limit
}

// Same reports whether both are the same sender with the same rights.
func (id Identity) Same(other Identity) bool {
	return id.Key() == other.Key() && id.ReadOnly == other.ReadOnly && id.rightsText() == other.rightsText()
}

func (id Identity) rightsText() string {
	if id.Rights == nil {
		return ""
	}
	return id.Rights.Text
}

// changes reports whether a right is for changes of the owner.
func changes(right access.Right) bool {
	return right == access.Publish || right == access.Withdraw || right == access.Offer || right == access.Destroy
}

// May reports whether the identity has a right to a model or a function.
func (id Identity) May(right access.Right, name string) bool {
	if id.ReadOnly && changes(right) {
		return false
	}
	return id.Rights == nil || id.Rights.Grants.May(right, name)
}

// MayAny reports whether the identity has a right to at least one model or function.
func (id Identity) MayAny(right access.Right) bool {
	if id.ReadOnly && changes(right) {
		return false
	}
	return id.Rights == nil || len(id.Rights.Grants.Patterns(right)) > 0
}

// Allow returns nil if the identity has a right to a model or a function. An empty name means any of them. The error is
// ErrReadOnly or ErrRight.
func (id Identity) Allow(right access.Right, name string) error {
	switch {
	case id.ReadOnly && changes(right):
		return id.readOnly()
	case right == access.Info && id.May(right, ""):
	case right == access.Info:
		return fmt.Errorf("%w: %s has no right %q", ErrRight, id.Who(), right)
	case name == "" && !id.MayAny(right):
		return fmt.Errorf("%w: %s has the right %q for no name", ErrRight, id.Who(), right)
	case name != "" && !id.May(right, name):
		return fmt.Errorf("%w: %s has no right %q to %q", ErrRight, id.Who(), right, name)
	}
	return nil
}

// AllowMetrics returns nil if the identity may read metrics.
func (id Identity) AllowMetrics() error {
	if id.Rights == nil || id.Rights.Metrics {
		return nil
	}
	return fmt.Errorf(`%w: %s has no right "metrics"`, ErrRight, id.Who())
}

// AllowControl returns nil if the identity may change what the gateway does for all clients.
func (id Identity) AllowControl() error {
	switch {
	case id.ReadOnly:
		return id.readOnly()
	case id.Rights == nil || id.Rights.Control:
		return nil
	}
	return fmt.Errorf(`%w: %s has no right "control"`, ErrRight, id.Who())
}

// AllowChange returns nil if the identity may make changes at all.
func (id Identity) AllowChange() error {
	if id.ReadOnly {
		return id.readOnly()
	}
	return nil
}

func (id Identity) readOnly() error {
	return fmt.Errorf("%w: the token of %s is a read-only one", ErrReadOnly, id.Who())
}

// Who returns the name of the sender for messages.
func (id Identity) Who() string {
	switch {
	case id.Name != "":
		return id.Name
	case id.ID != "":
		return "token " + id.ID
	}
	return "this request"
}

// Quota returns the identity's quota, which is zero without a policy.
func (id Identity) Quota() Quota {
	if id.Rights == nil {
		return Quota{}
	}
	return id.Rights.Quota
}

// Filter returns the elements of a list to whose names the identity has a right.
func Filter[T any](id Identity, right access.Right, list []T, name func(T) string) []T {
	if id.Rights == nil || id.Rights.Grants.Everything(right) {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(one T) bool { return !id.May(right, name(one)) })
}
