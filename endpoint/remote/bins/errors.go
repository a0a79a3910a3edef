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
	// ErrFull means that the namespace, the server's store or its disk has no room. Writers should wait for readers.
	ErrFull = errors.New("no room in the bins")
	// ErrTooLarge means that an item is larger than the store allows.
	ErrTooLarge = errors.New("the item is too large")
	// ErrName means that a text is no name of a bin.
	ErrName = errors.New("not the name of a bin")
	// ErrOutcomeUnknown means that the server did not answer before the context ended: the write may be stored or not,
	// now or later.
	ErrOutcomeUnknown = errors.New("it is not known whether the server stored it")
	// ErrCorrupt means that an item is not what its writer stored, or that its body is gone.
	ErrCorrupt = errors.New("the item is damaged")
)

// Codes of the server that nats.go has no names for.
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

// lostRace reports that the server refused a write because another one came first.
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

// isOutage reports an error after which the server may have done what it was asked for.
func isOutage(err error) bool { return natslink.IsOutage(err) }

// wrap names the operation and the bin, and gives a full store its sentinel.
func wrap(op, bin string, err error) error {
	if err == nil {
		return nil
	}
	if isFull(err) {
		return fmt.Errorf("%s the bin %q: %w: %w", op, bin, ErrFull, err)
	}
	return fmt.Errorf("%s the bin %q: %w", op, bin, err)
}
