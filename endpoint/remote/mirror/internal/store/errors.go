package store

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

var (
	// ErrAnswer is a place that answers what it must not, such as a range that was not asked for.
	ErrAnswer = errors.New("the source's answer does not hold")
	// ErrNotFound is a model, a version or a file that the place does not have.
	ErrNotFound = errors.New("the source does not have it")
	// ErrDenied is a place that does not let this client in.
	ErrDenied = errors.New("the source refuses")
	// ErrChanged is a file that is another than the one that was found.
	ErrChanged = errors.New("the version at the source is gone")
	// ErrNoRanges is a place, or something before it, that sends the whole where a range was asked for.
	ErrNoRanges = errors.New("ranges are ignored")
	// ErrUnsupported is a model that is there in a form from which it cannot be loaded.
	ErrUnsupported = errors.New("it is no safetensors model")
)

// StatusError is an answer that is no success.
type StatusError struct {
	// Status is the HTTP status, Text what the place says about it.
	Status int
	Text   string
	// After is how long the place asks to wait.
	After time.Duration
}

// Error says what the source said.
func (e *StatusError) Error() string {
	return fmt.Sprintf("the source answers %d %s: %s", e.Status, http.StatusText(e.Status), e.Text)
}

// Unwrap is the kind of refusal.
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
