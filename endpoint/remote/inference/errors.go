package inference

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
)

// Errors of this package, wrapped with details. They are sent as gRPC codes and HTTP statuses.
var (
	// ErrInvalid is returned for a request that contradicts itself or does not match the model.
	ErrInvalid = admission.NewError(admission.Invalid, "invalid request")
	// ErrNotFound is returned for an unknown model, version or region.
	ErrNotFound = admission.NewError(admission.NotFound, "not found")
	// ErrExists is returned for a region with a name that is in use.
	ErrExists = admission.NewError(admission.Exists, "already exists")
	// ErrTooLarge is returned for a request over a limit.
	ErrTooLarge = admission.NewError(admission.TooLarge, "too large")
	// ErrNotServed is returned for a part of the protocol that is not supported, or not available to this client.
	ErrNotServed = admission.NewError(admission.NotServed, "not served")
	// ErrNotReady is returned for a model that was unloaded.
	ErrNotReady = admission.NewError(admission.Unavailable, "not ready")
)

// notDecoupled returns the error for a unary request to a decoupled model.
func notDecoupled(m *model) error {
	return fmt.Errorf("%w: model '%s' is decoupled: use ModelStreamInfer", ErrNotServed, m.name)
}
