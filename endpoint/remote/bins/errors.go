package bins

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

var (
	// ErrNotFound means that a bin has no items.
	ErrNotFound = errors.New("the bin is empty")
	// ErrFull means that the namespace, the server's store or its disk is full. Writers should wait for readers.
	ErrFull = errors.New("the bins are full")
	// ErrTooLarge means that an item exceeds a limit of the store.
	ErrTooLarge = errors.New("the item is too large")
	// ErrName means that a bin name is invalid.
	ErrName = errors.New("invalid bin name")
	// ErrOutcomeUnknown means that the server did not answer before the context ended. The write may have been stored,
	// or may still be stored later.
	ErrOutcomeUnknown = errors.New("outcome unknown: the server may have stored it")
	// ErrCorrupt means that an item differs from what its writer stored, or that its body is missing.
	ErrCorrupt = errors.New("the item is damaged")
)

// Server error codes that nats.go does not define.
const (
	codeNoMemory      = 10028 // "insufficient memory resources available"
	codeNoStorage     = 10047 // "insufficient storage resources available"
	codeStreamFull    = 10077 // "maximum bytes exceeded", "maximum messages exceeded"
	codeNoResources   = 10023 // "insufficient resources"
	codeWrongSequence = int(jetstream.JSErrCodeStreamWrongLastSequence)
)

func apiCode(err error) int {
	if api := (*jetstream.APIError)(nil); errors.As(err, &api) {
		return int(api.ErrorCode)
	}
	if js := jetstream.JetStreamError(nil); errors.As(err, &js) && js.APIError() != nil {
		return int(js.APIError().ErrorCode)
	}
	return 0
}

// lostRace reports whether the server refused a write because of a concurrent write.
func lostRace(err error) bool {
	code := apiCode(err)
	return code == codeWrongSequence || code == int(jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

func isFull(err error) bool {
	switch apiCode(err) {
	case codeNoMemory, codeNoStorage, codeStreamFull, codeNoResources:
		return true
	}
	return false
}

// isOutage reports whether the server may have executed the request despite err.
func isOutage(err error) bool { return natslink.IsOutage(err) }

// wrap adds the operation and the bin to an error, and maps errors of a full store to [ErrFull].
func wrap(op, bin string, err error) error {
	if err == nil {
		return nil
	}
	if isFull(err) {
		return fmt.Errorf("%s the bin %q: %w: %w", op, bin, ErrFull, err)
	}
	return fmt.Errorf("%s the bin %q: %w", op, bin, err)
}
