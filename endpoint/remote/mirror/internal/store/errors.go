package store

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

var (
	// ErrAnswer is returned for an invalid response, such as one with a range that was not requested.
	ErrAnswer = errors.New("invalid response from the source")
	// ErrNotFound is returned for a model, version or file that the place does not have.
	ErrNotFound = errors.New("the source does not have it")
	// ErrDenied is returned if the place refuses access.
	ErrDenied = errors.New("the source refuses access")
	// ErrChanged is returned if a file has changed since it was found.
	ErrChanged = errors.New("the version at the source is gone")
	// ErrNoRanges is returned if the place, or a proxy before it, ignores ranges and sends the whole file.
	ErrNoRanges = modelwire.ErrNoRanges
	// ErrUnsupported is returned for a model in a format that cannot be loaded.
	ErrUnsupported = errors.New("not a safetensors model")
)

// StatusError is an unsuccessful HTTP response.
type StatusError struct {
	// Status is the HTTP status. Text is the message of the place.
	Status int
	Text   string
	// After is the delay requested by the place.
	After time.Duration
}

// Error returns the status and the message.
func (e *StatusError) Error() string {
	return fmt.Sprintf("the source answers %d %s: %s", e.Status, http.StatusText(e.Status), e.Text)
}

// Unwrap returns the error of this package for the status.
func (e *StatusError) Unwrap() error {
	switch e.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return ErrDenied
	case http.StatusNotFound:
		return ErrNotFound
	case http.StatusPreconditionFailed:
		return ErrChanged
	}
	return nil
}
