// Package status has the errors of owners and clients, and what they are on the wire: sentinels, classes and codes.
package status

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/task/panics"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Errors of owners and clients. They answer errors.Is on both sides of the socket: an owner's error travels as a code
// and a word, and what the client gets answers for the same sentinels and, with errors.As, is a [*message.Error].
// Errors that do not cross a socket, because the server is in this process or because the client itself refuses
// something, answer for the same sentinels.
var (
	// ErrInvalid is a request that makes no sense: a bad name, a manifest that does not fit its memory.
	ErrInvalid = driver.ErrInvalid
	// ErrConfiguration is a registration, an option or an environment that makes no sense. It is [ErrInvalid] too, and
	// answers for [message.CodeConfiguration].
	ErrConfiguration error = &class{message.CodeConfiguration, "bad configuration"}
	// ErrCapability is an argument, a result or a state dict that cannot be shared in place: memory that cannot be
	// exported or that the other side cannot map, a type that cannot cross. It says why, as errors.ErrUnsupported where
	// the device cannot do it, and answers for [message.CodeCapability].
	ErrCapability error = &class{message.CodeCapability, "payload cannot be shared in place"}
	// ErrNotFound is a name or version that nobody has published, or a lease that is not there.
	ErrNotFound = catalog.ErrNotFound
	// ErrLoading is a name that the owner is still loading. It is [ErrNotFound] too; [Client.Watch] tells when it is
	// published.
	ErrLoading = errors.New("still loading")
	// ErrNotKept is memory of an argument that a client named by a number, and that the server does not keep mapped any
	// more.
	ErrNotKept = errors.New("memory is not kept")
	// ErrInUse is a socket that another owner holds.
	ErrInUse = errors.New("another owner is serving on this socket")
	// ErrPermission is a peer, a socket or a directory that this user must not trust.
	ErrPermission = os.ErrPermission
	// ErrUnavailable is an owner that is not there, or went away before it answered.
	ErrUnavailable = errors.New("no owner is serving")
	// ErrWorkerGone is a call whose worker went away before it answered ([Client.Offer]): whether the function ran is not
	// known, and nobody calls it again.
	ErrWorkerGone = errors.New("worker gone")
	// ErrLimit is a request refused because a limit is reached: clients, requests in flight, bytes.
	ErrLimit = errors.New("limit reached")
	// ErrStale is a handle whose version is gone at the owner, or a managed object that is gone.
	ErrStale = errors.New("handle is stale")
	// ErrProtocol is a peer that does not keep to the protocol.
	ErrProtocol = wire.ErrProtocol
	// ErrPanic is a function of an endpoint that panicked, or a type of its arguments or results that did while it
	// encoded or decoded itself.
	ErrPanic = panics.ErrPanic
	// ErrGoexit is a function of an endpoint that ended its goroutine instead of returning.
	ErrGoexit = panics.ErrGoexit
	// ErrClosed is a server, client or handle that was closed.
	ErrClosed = os.ErrClosed
	// ErrServerClosed is what Serve returns after Shutdown or Close.
	ErrServerClosed error = serverClosed{}
	// ErrRegistered is a name that is taken in a registry.
	ErrRegistered = errors.New("endpoint is registered already")
	// ErrNoEndpoint is a call of a name that is not registered.
	ErrNoEndpoint = errors.New("endpoint is not registered")
)

// ErrServerClosing refuses what a process asks of its own server once that has begun to close. It is also the cause of
// the contexts of functions that still run when a server closes: a client that is sent it sees an owner that is away.
var ErrServerClosing = fmt.Errorf("%w: %w", ErrUnavailable, ErrServerClosed)

// serverClosed is the type of [ErrServerClosed]. It answers for os.ErrClosed, whose text is about files.
type serverClosed struct{}

func (serverClosed) Error() string { return "the server has been closed" }
func (serverClosed) Unwrap() error { return os.ErrClosed }

// class is a sentinel that answers for its code too, in processes that nothing has crossed into.
type class struct {
	code message.Code
	text string
}

func (c *class) Error() string        { return c.text }
func (c *class) Is(target error) bool { return target == c.code }

// codedError is an error with a class that its text does not show.
type codedError struct {
	class error
	err   error
}

func (c *codedError) Error() string   { return c.err.Error() }
func (c *codedError) Unwrap() []error { return []error{c.class, c.err} }

// WithClass makes err, whose text stays as it is, an error of a class.
func WithClass(class, err error) error { return &codedError{class, err} }

// Configuration makes err, if it is ErrInvalid, one of ErrConfiguration.
func Configuration(err error) error {
	if errors.Is(err, ErrInvalid) && !errors.Is(err, ErrConfiguration) {
		return WithClass(ErrConfiguration, err)
	}
	return err
}

// Capability makes an error of ErrCapability of what refused to share memory or a value.
func Capability(err error) error {
	if errors.Is(err, ErrCapability) {
		return err
	}
	return WithClass(ErrCapability, err)
}

// Unshareable is capability for what came of sharing something: only what is not supported says that the payload is at
// fault.
func Unshareable(err error) error {
	if errors.Is(err, errors.ErrUnsupported) {
		return Capability(err)
	}
	return err
}

// Absent is an error of the catalog as it crosses: without the operation and the name, which the client puts before it.
// A version that is not there is ErrNotFound too, as a name is that is not there.
func Absent(err error) error {
	var of *catalog.NameError
	if errors.As(err, &of) {
		err = of.Err
	}
	if errors.Is(err, catalog.ErrNoVersion) {
		return WithClass(ErrNotFound, err)
	}
	return err
}

// ErrTooLarge is what no frame can carry: a limit, too.
var ErrTooLarge error = WithClass(ErrLimit, wire.ErrTooLarge)

// MaxShown is how many bytes of a name that somebody chose stand in an error.
const MaxShown = 128

// Shown is such a name as it stands in errors.
func Shown(name string) string { return strconv.Quote(message.CutText(name, MaxShown)) }

// RemoteError is the error in a frame of a peer. It borrows the frame.
func RemoteError(frame wire.Frame) error {
	var e message.Error
	if err := message.Unmarshal(frame.Body, &e); err != nil {
		return fmt.Errorf("%w: error frame: %w", ErrProtocol, err)
	}
	return fmt.Errorf("owner: %w", DecodeError(&e))
}
