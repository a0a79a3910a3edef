// Package status defines the errors of owners and clients and their wire form: sentinels, classes and codes. It
// also defines the names of the limits on clients' resources, and counts refusals.
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

// Errors of owners and clients. errors.Is matches them on both sides of the socket: an owner's error is sent as a code
// and a word, and the client returns an error that matches the same sentinels and, with errors.As, a [*message.Error].
// Errors that do not cross a socket match the same sentinels. These are errors of a server in this process and of
// requests that the client itself refuses.
var (
	// ErrInvalid reports an invalid request, such as a bad name or a manifest that does not match its memory.
	ErrInvalid = driver.ErrInvalid
	// ErrConfiguration reports an invalid registration, option or environment variable. It also matches [ErrInvalid]
	// and [message.CodeConfiguration].
	ErrConfiguration error = &class{message.CodeConfiguration, "bad configuration"}
	// ErrCapability reports an argument, a result or a state dict that cannot be shared in place: its memory cannot be
	// exported or imported, or its type cannot be encoded. It also matches [message.CodeCapability], and
	// errors.ErrUnsupported if the device does not support sharing.
	ErrCapability error = &class{message.CodeCapability, "payload cannot be shared in place"}
	// ErrNotFound reports a name or version that is not published, or a lease that does not exist.
	ErrNotFound = catalog.ErrNotFound
	// ErrChanged reports a change of a name that requires another current version.
	ErrChanged = catalog.ErrChanged
	// ErrPart reports a part that does not fit the version: another number of parts or key, an index that is published
	// already, or a name whose versions are not made of parts.
	ErrPart = errors.New("the part does not fit")
	// ErrIncomplete reports a version that was not published because parts of it were missing.
	ErrIncomplete = errors.New("the version is incomplete")
	// ErrLoading reports a name that the owner is still loading. It also matches [ErrNotFound]. [Client.Watch] reports
	// when the name is published.
	ErrLoading = errors.New("still loading")
	// ErrNotKept reports argument memory that a client referred to by number and that the server has unmapped.
	ErrNotKept = errors.New("memory is not kept")
	// ErrInUse reports a socket that another owner holds.
	ErrInUse = errors.New("another owner is serving on this socket")
	// ErrPermission reports a peer, socket or directory that this user must not trust.
	ErrPermission = os.ErrPermission
	// ErrUnavailable reports an owner that is not running or that disconnected before it answered.
	ErrUnavailable = errors.New("no owner is serving")
	// ErrWorkerGone reports a worker ([Client.Offer]) that disconnected before it answered a call. The function may
	// have run. The call is not repeated.
	ErrWorkerGone = errors.New("worker gone")
	// ErrLimit reports a request refused because a limit is reached: clients, requests in flight, bytes.
	ErrLimit = errors.New("limit reached")
	// ErrStale reports a handle whose version or managed object no longer exists at the owner.
	ErrStale = errors.New("handle is stale")
	// ErrProtocol reports a peer that violated the protocol.
	ErrProtocol = wire.ErrProtocol
	// ErrPanic reports a panic in a function of an endpoint, or in the encoding or decoding of its argument or result.
	ErrPanic = panics.ErrPanic
	// ErrGoexit reports a function of an endpoint that called runtime.Goexit instead of returning.
	ErrGoexit = panics.ErrGoexit
	// ErrClosed reports a server, client or handle that was closed.
	ErrClosed = os.ErrClosed
	// ErrServerClosed is returned by Serve after Shutdown or Close.
	ErrServerClosed error = serverClosed{}
	// ErrRegistered reports a name that is already registered.
	ErrRegistered = errors.New("endpoint is registered already")
	// ErrNoEndpoint reports a call of a name that is not registered.
	ErrNoEndpoint = errors.New("endpoint is not registered")
)

// ErrServerClosing reports a request of a process to its own server after the server has begun to close. It is also the
// cause of the contexts of functions that are running when a server closes. Clients receive it as ErrUnavailable.
var ErrServerClosing = fmt.Errorf("%w: %w", ErrUnavailable, ErrServerClosed)

// ErrLeaving reports a request that the server refused after its goodbye. It did not run, so the client sends it to the
// next owner. Callers never receive it.
var ErrLeaving = fmt.Errorf("%w: the owner is shutting down", ErrUnavailable)

// Ran returns the error of a function or an interceptor, which may be one that another server returned. It does not match
// [ErrLeaving], so that nobody takes the call for one that did not run. The text and all other matches are those of err.
func Ran(err error) error {
	if errors.Is(err, ErrLeaving) || Refused(err) {
		return ranError{err}
	}
	return err
}

// ranError hides ErrLeaving. It has no Unwrap method, which would show it.
type ranError struct{ err error }

func (r ranError) Error() string        { return r.err.Error() }
func (r ranError) Is(target error) bool { return target != ErrLeaving && errors.Is(r.err, target) }
func (r ranError) As(target any) bool   { return errors.As(r.err, target) }

// Refused reports whether an owner's answer says that the request did not run because the owner is leaving. Only the answer
// itself counts, not an error that it wraps.
func Refused(err error) bool {
	var answer *message.Error
	return errors.As(err, &answer) && answer.Code == message.CodeUnavailable && answer.Type == leavingWord
}

// leavingWord is the word of [ErrLeaving] on the wire.
const leavingWord = "leaving"

// Closed returns the error of a use of something closed, such as "the watcher". It matches [ErrClosed], whose own text
// is about files.
func Closed(what string) error { return closedError(what) }

// closedError is the name of what is closed.
type closedError string

func (e closedError) Error() string { return string(e) + " is closed" }
func (e closedError) Unwrap() error { return os.ErrClosed }

// serverClosed is the type of [ErrServerClosed]. It matches os.ErrClosed, whose own text is about files.
type serverClosed struct{}

func (serverClosed) Error() string { return "the server has been closed" }
func (serverClosed) Unwrap() error { return os.ErrClosed }

// class is a sentinel that also matches its code, even if the error has not crossed a socket.
type class struct {
	code message.Code
	text string
}

func (c *class) Error() string        { return c.text }
func (c *class) Is(target error) bool { return target == c.code }

// codedError is an error with a class that is not part of its text.
type codedError struct {
	class error
	err   error
}

func (c *codedError) Error() string   { return c.err.Error() }
func (c *codedError) Unwrap() []error { return []error{c.class, c.err} }

// WithClass returns an error that matches class and err and has the text of err.
func WithClass(class, err error) error { return &codedError{class, err} }

// Configuration adds ErrConfiguration to err if err is ErrInvalid.
func Configuration(err error) error {
	if errors.Is(err, ErrInvalid) && !errors.Is(err, ErrConfiguration) {
		return WithClass(ErrConfiguration, err)
	}
	return err
}

// Capability adds ErrCapability to the error of an attempt to share memory or a value.
func Capability(err error) error {
	if errors.Is(err, ErrCapability) {
		return err
	}
	return WithClass(ErrCapability, err)
}

// Unshareable adds ErrCapability to err only if err is errors.ErrUnsupported: other failures of sharing are not due to
// the payload.
func Unshareable(err error) error {
	if errors.Is(err, errors.ErrUnsupported) {
		return Capability(err)
	}
	return err
}

// Absent converts an error of the catalog for clients. It removes the operation and the name, which the client adds
// again. A missing version also matches ErrNotFound, like a missing name.
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

// ErrTooLarge reports a message that does not fit in a frame. It also matches [ErrLimit].
var ErrTooLarge error = WithClass(ErrLimit, wire.ErrTooLarge)

// MaxShown is the maximum size in bytes of a peer's name in error texts.
const MaxShown = 128

// Shown returns such a name for error texts, truncated and quoted.
func Shown(name string) string {
	if len(name) > MaxShown {
		name = message.CutText(name, MaxShown)
	}
	return strconv.Quote(name)
}

// RemoteError returns the error in a frame from a peer. It borrows the frame.
func RemoteError(frame wire.Frame) error {
	var e message.Error
	if err := message.Unmarshal(frame.Body, &e); err != nil {
		return fmt.Errorf("%w: error frame: %w", ErrProtocol, err)
	}
	return fmt.Errorf("owner: %w", DecodeError(&e))
}

// Reach is called at named steps of publications, leases, adoptions and handovers. It does nothing. A test program
// replaces it before it uses other packages, to stop or kill processes at a step.
var Reach = func(step string) {}

// Fault is called before system calls that may fail, such as reads of the journal. It returns nil. A test program
// replaces it to make them fail.
var Fault = func(call string) error { return nil }
