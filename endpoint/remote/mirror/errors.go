package mirror

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/sharedtensor/sharedtensor/module"
)

var (
	// ErrSource is a source that answers what it must not: a manifest that does not hold, a range that was not asked
	// for, a redirect to another host.
	ErrSource = errors.New("the source's answer does not hold")
	// ErrDigest is bytes that are not those of the manifest, or a model that is not the one of Options.Digest.
	ErrDigest = module.ErrDigest
	// ErrTooLarge is a model beyond Options.MaxBytes.
	ErrTooLarge = errors.New("the model is too large")
	// ErrNotFound is a model or version that the source does not have.
	ErrNotFound = errors.New("the source does not have it")
	// ErrDenied is a source that does not let this client in.
	ErrDenied = errors.New("the source refuses")
	// ErrStalled is a source that sent nothing for Options.Stall.
	ErrStalled = errors.New("the source sends nothing")

	// errChanged is a source that has another version under the number that was asked for, or has it no more.
	errChanged = errors.New("the version at the source is gone")
	// errNoPatch is a delta that cannot be had, or does not lead to the tensor.
	errNoPatch = errors.New("it cannot be patched")
	// errNoRanges is a source, or something before it, that sends the whole where a range was asked for.
	errNoRanges = errors.New("ranges are ignored")
)

// statusError is an answer that is no success.
type statusError struct {
	status int
	text   string
	after  time.Duration // that the source asks for
}

// Error says what the source said.
func (e *statusError) Error() string {
	return fmt.Sprintf("the source answers %d %s: %s", e.status, http.StatusText(e.status), e.text)
}

// Unwrap is the kind of refusal.
func (e *statusError) Unwrap() error {
	switch e.status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return ErrDenied
	case http.StatusNotFound:
		return ErrNotFound
	}
	return nil
}

// passing reports whether an error is one that may be over when the request is made again: those of connections, and a
// source that is busy or waits for its owner.
func passing(err error) bool {
	var status *statusError
	switch {
	case errors.As(err, &status):
		return status.status >= 500 && status.status != http.StatusNotImplemented ||
			status.status == http.StatusTooManyRequests || status.status == http.StatusRequestTimeout
	case errors.Is(err, ErrSource), errors.Is(err, ErrDigest), errors.Is(err, ErrTooLarge), errors.Is(err, errChanged), errors.Is(err, errNoRanges):
		return false
	}
	return err != nil
}

// retryAfter reads the field of that name in seconds.
func retryAfter(text string) time.Duration {
	seconds, err := strconv.Atoi(text)
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(min(seconds, 60)) * time.Second
}
