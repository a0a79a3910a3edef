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
	// ErrSource is returned if the source's response is invalid: a bad manifest, a range that was not requested, or a
	// redirect to another host.
	ErrSource = store.ErrAnswer
	// ErrDigest is returned if a digest differs from the manifest or from Options.Digest.
	ErrDigest = module.ErrDigest
	// ErrTooLarge is returned for a model larger than Options.MaxBytes.
	ErrTooLarge = errors.New("the model is too large")
	// ErrNotFound is returned for a model or version that the source does not have.
	ErrNotFound = store.ErrNotFound
	// ErrDenied is returned if the source refuses access.
	ErrDenied = store.ErrDenied
	// ErrUnsupported is returned for a model in a format that cannot be mirrored.
	ErrUnsupported = store.ErrUnsupported
	// ErrStalled is returned if the source sends nothing for Options.Stall.
	ErrStalled = errors.New("the source sends nothing")

	// errChanged is returned if the source has replaced or removed the requested version.
	errChanged = store.ErrChanged
	// errNoPatch is returned if a delta is missing or produces a different tensor.
	errNoPatch = errors.New("cannot apply the delta")
	// errNoRanges is returned if the source, or a proxy before it, ignores ranges and sends the whole file.
	errNoRanges = store.ErrNoRanges
)

// errPeer is an error of another mirror. It does not unwrap, because the bytes are available elsewhere regardless of
// the cause.
type errPeer struct{ err error }

// Error returns the mirror's error message.
func (e errPeer) Error() string { return e.err.Error() }

// passing reports whether a retry may succeed: after connection errors, and if the source is busy or waits for its
// owner.
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

// refusesFile reports whether the error concerns the model's content or location, which is permanent.
func refusesFile(err error) bool {
	var certificate *tls.CertificateVerificationError
	var invalid x509.CertificateInvalidError
	return errors.Is(err, ErrUnsupported) || errors.Is(err, ErrDenied) || errors.Is(err, ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) ||
		errors.As(err, &certificate) || errors.As(err, &invalid)
}
