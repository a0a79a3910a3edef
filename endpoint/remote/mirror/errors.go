package mirror

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net/http"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror/internal/store"
	"github.com/sharedtensor/sharedtensor/module"
)

var (
	// ErrSource is a source that answers what it must not: a manifest that does not hold, a range that was not asked
	// for, a redirect to another host.
	ErrSource = store.ErrAnswer
	// ErrDigest is bytes that are not those of the manifest, or a model that is not the one of Options.Digest.
	ErrDigest = module.ErrDigest
	// ErrTooLarge is a model beyond Options.MaxBytes.
	ErrTooLarge = errors.New("the model is too large")
	// ErrNotFound is a model or version that the source does not have.
	ErrNotFound = store.ErrNotFound
	// ErrDenied is a source that does not let this client in.
	ErrDenied = store.ErrDenied
	// ErrUnsupported is a model that is there, in a form that cannot be mirrored.
	ErrUnsupported = store.ErrUnsupported
	// ErrStalled is a source that sent nothing for Options.Stall.
	ErrStalled = errors.New("the source sends nothing")

	// errChanged is a source that has another version under the number that was asked for, or has it no more.
	errChanged = store.ErrChanged
	// errNoPatch is a delta that cannot be had, or does not lead to the tensor.
	errNoPatch = errors.New("it cannot be patched")
	// errNoRanges is a source, or something before it, that sends the whole where a range was asked for.
	errNoRanges = store.ErrNoRanges
)

// errPeer is an error of another mirror. Whatever it is, the bytes can be had elsewhere; so it answers errors.Is for
// nothing.
type errPeer struct{ err error }

// Error says what went wrong there.
func (e errPeer) Error() string { return e.err.Error() }

// passing reports whether an error is one that may be over when the request is made again: those of connections, and a
// source that is busy or waits for its owner.
func passing(err error) bool {
	var status *store.StatusError
	switch {
	case errors.As(err, &status):
		return status.Status >= 500 && status.Status != http.StatusNotImplemented ||
			status.Status == http.StatusTooManyRequests || status.Status == http.StatusRequestTimeout
	case errors.Is(err, ErrSource), errors.Is(err, ErrDigest), errors.Is(err, ErrTooLarge), errors.Is(err, errChanged), errors.Is(err, errNoRanges), refusesFile(err),
		errors.Is(err, driver.ErrOutOfMemory):
		return false
	}
	return err != nil
}

// refusesFile reports whether an error is about what a model is or where, which does not pass.
func refusesFile(err error) bool {
	var certificate *tls.CertificateVerificationError
	var invalid x509.CertificateInvalidError
	return errors.Is(err, ErrUnsupported) || errors.Is(err, ErrDenied) || errors.Is(err, ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) ||
		errors.As(err, &certificate) || errors.As(err, &invalid)
}
