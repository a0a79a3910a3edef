package endpoint

import (
	"errors"
	"fmt"
	"os"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire"
)

// Errors of owners and clients. They answer errors.Is on both sides of the socket: an owner's error travels as a code, and
// what the client gets answers for the same sentinel and, with errors.As, is a [*wire.Error].
var (
	// ErrInvalid is a request that makes no sense: a bad name, a manifest that does not fit its memory.
	ErrInvalid = driver.ErrInvalid
	// ErrNotFound is a name or version that nobody has published, or a lease that is not there.
	ErrNotFound = catalog.ErrNotFound
	// ErrInUse is a socket that another owner holds.
	ErrInUse = errors.New("another owner is serving on this socket")
	// ErrPermission is a peer, a socket or a directory that this user must not trust.
	ErrPermission = os.ErrPermission
	// ErrUnavailable is an owner that is not there, or went away before it answered.
	ErrUnavailable = errors.New("no owner is serving")
	// ErrLimit is a request refused because a limit is reached: clients, requests in flight, bytes.
	ErrLimit = errors.New("limit reached")
	// ErrStale is a handle whose version is gone at the owner.
	ErrStale = errors.New("handle is stale")
	// ErrProtocol is a peer that does not keep to the protocol.
	ErrProtocol = wire.ErrProtocol
	// ErrClosed is a server, client or handle that was closed.
	ErrClosed = os.ErrClosed
)

// codes translates between errors and what crosses the socket. On the way out the first row that an error answers to wins; on the
// way in a code answers for every sentinel beside it.
var codes = wire.NewCodeTable(
	wire.CodeRow{Code: wire.CodeStaleHandle, Err: ErrStale},
	wire.CodeRow{Code: wire.CodeProvider, Err: ErrNoEndpoint},
	wire.CodeRow{Code: wire.CodeProvider, Err: ErrRegistered},
	wire.CodeRow{Code: wire.CodeNotFound, Err: catalog.ErrNotFound},
	wire.CodeRow{Code: wire.CodeNotFound, Err: catalog.ErrNoVersion},
	wire.CodeRow{Code: wire.CodeInvalidArgument, Err: driver.ErrInvalid},
	wire.CodeRow{Code: wire.CodeInvalidArgument, Err: catalog.ErrName},
	wire.CodeRow{Code: wire.CodeInvalidArgument, Err: driver.ErrHandle},
	wire.CodeRow{Code: wire.CodeInvalidArgument, Err: module.ErrManifest},
	wire.CodeRow{Code: wire.CodePermissionDenied, Err: catalog.ErrNotHolder},
	wire.CodeRow{Code: wire.CodePermissionDenied, Err: driver.ErrReadOnly},
	wire.CodeRow{Code: wire.CodeOutOfMemory, Err: driver.ErrOutOfMemory},
	wire.CodeRow{Code: wire.CodeResourceExhausted, Err: ErrLimit},
	wire.CodeRow{Code: wire.CodeUnavailable, Err: ErrUnavailable},
	wire.CodeRow{Code: wire.CodeClosed, Err: catalog.ErrClosed},
)

// encodeError is what a peer is told of err. Errors of tasks have one code and are told apart by a word.
func encodeError(err error) *wire.Error {
	if word := taskWord(err); word != "" {
		return &wire.Error{Code: wire.CodeTask, Type: word, Message: err.Error()}
	}
	return codes.Encode(err)
}

// decodeError is the error that a peer sent, answering for the sentinels of its code.
func decodeError(e *wire.Error) error {
	if e.Code == wire.CodeTask {
		for _, row := range taskErrors {
			if row.word == e.Type {
				return &taskError{remote: e, sentinel: row.err}
			}
		}
	}
	return codes.Decode(e)
}

// taskError is an error of a task at the owner.
type taskError struct {
	remote   *wire.Error
	sentinel error
}

func (e *taskError) Error() string { return e.remote.Error() }

func (e *taskError) Unwrap() []error { return []error{e.remote, e.sentinel} }

// remoteError is the error in a frame of a peer. It borrows the frame.
func remoteError(frame wire.Frame) error {
	var e wire.Error
	if err := wire.Unmarshal(frame.Body, &e); err != nil {
		return fmt.Errorf("%w: error frame: %w", ErrProtocol, err)
	}
	return fmt.Errorf("owner: %w", decodeError(&e))
}
