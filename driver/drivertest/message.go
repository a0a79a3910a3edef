package drivertest

import (
	"errors"
	"io"
	"os"

	"github.com/sharedtensor/sharedtensor/driver"
)

// pieceBytes is the maximum number of a memory's bytes in one message.
const pieceBytes = 32 << 10

// request is a request of the suite to a peer. Memories have numbers assigned by the peer.
type request struct {
	Op       string
	Memory   int
	Bytes    int64
	Offset   int64
	Data     []byte
	Writable bool
	Handle   *driver.Handle
}

// response is the peer's answer; the fields besides Err depend on the operation.
type response struct {
	Err      *remoteError
	Memory   int
	Bytes    int64
	Writable bool
	N        int
	Data     []byte
	Info     driver.Info
	Handle   *driver.Handle
}

// packHandle splits a handle into its description and its descriptor, which is sent with the message.
func packHandle(h driver.Handle) (*driver.Handle, *os.File) {
	file := h.File
	h.File = nil
	return &h, file
}

// unpackHandle is the reverse of packHandle.
func unpackHandle(h *driver.Handle, file *os.File) driver.Handle {
	h.File = file
	return *h
}

// sentinels are the errors that keep their identity in answers of a peer.
var sentinels = map[string]error{
	"invalid":     driver.ErrInvalid,
	"memory":      driver.ErrOutOfMemory,
	"handle":      driver.ErrHandle,
	"range":       driver.ErrRange,
	"readonly":    driver.ErrReadOnly,
	"closed":      os.ErrClosed,
	"unsupported": errors.ErrUnsupported,
	"eof":         io.EOF,
}

// remoteError is an error of the other process. It matches errors.Is for the sentinels of the original.
type remoteError struct {
	Text      string
	Sentinels []string
}

func (e *remoteError) Error() string { return "in the other process: " + e.Text }

func (e *remoteError) Is(target error) bool {
	for _, name := range e.Sentinels {
		if sentinels[name] == target {
			return true
		}
	}
	return false
}

func packError(err error) *remoteError {
	if err == nil {
		return nil
	}
	e := &remoteError{Text: err.Error()}
	for name, sentinel := range sentinels {
		if errors.Is(err, sentinel) {
			e.Sentinels = append(e.Sentinels, name)
		}
	}
	return e
}
