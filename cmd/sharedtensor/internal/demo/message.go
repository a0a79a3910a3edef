package demo

import (
	"errors"
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/demonet"
	"github.com/sharedtensor/sharedtensor/driver"
)

// Operations that the director requests.
const (
	opServe     = "serve"     // own the socket; with a path, load that model and publish it first
	opAttach    = "attach"    // acquire the newest version and release the previous one
	opCompute   = "compute"   // run the network once
	opStart     = "start"     // run the network repeatedly
	opStop      = "stop"      // stop after one more run
	opHear      = "hear"      // wait for the event of a version
	opPublish   = "publish"   // load a model, change it, and publish its memory to the owner
	opReconnect = "reconnect" // wait for the connection to another owner
	opHandOver  = "hand over" // publish the attached version
	opQuit      = "quit"      // clean up and exit
)

// request is one line from the director.
type request struct {
	Op      string `json:"op"`
	Path    string `json:"path,omitempty"`
	Version uint64 `json:"version,omitempty"`
	Server  string `json:"server,omitempty"`
}

// quick reports whether the operation's duration does not depend on the size of the model.
func (r request) quick() bool {
	switch r.Op {
	case opAttach, opStart, opHear, opReconnect, opHandOver:
		return true
	}
	return false
}

// reply is one line to the director: any number of progress replies, then the answer.
type reply struct {
	Progress *progress `json:"progress,omitempty"`

	Error string `json:"error,omitempty"`
	Code  string `json:"code,omitempty"`

	Bytes   int64         `json:"bytes,omitempty"`
	Mapped  int64         `json:"mapped,omitempty"`
	Version uint64        `json:"version,omitempty"`
	Server  string        `json:"server,omitempty"` // the owner's id
	Connect time.Duration `json:"connect,omitempty"`
	Took    time.Duration `json:"took,omitempty"`
	Result  *Result       `json:"result,omitempty"`
	Runs    int           `json:"runs,omitempty"`
	Changed string        `json:"changed,omitempty"` // the tensor that differs from the file
}

// progress is the progress of a load in bytes.
type progress struct {
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
}

// codeOutOfMemory marks an error that matches [driver.ErrOutOfMemory].
const codeOutOfMemory = "out of memory"

func errorReply(err error) reply {
	r := reply{Error: err.Error()}
	if errors.Is(err, driver.ErrOutOfMemory) {
		r.Code = codeOutOfMemory
	}
	return r
}

// err returns the error of a reply, or nil.
func (r reply) err() error {
	switch {
	case r.Error == "":
		return nil
	case r.Code == codeOutOfMemory:
		return &remoteError{text: r.Error, is: driver.ErrOutOfMemory}
	}
	return &remoteError{text: r.Error}
}

// remoteError is an error of another process. It matches the sentinel of its code.
type remoteError struct {
	text string
	is   error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.is }

// Result is the result of a computation. Results of the same weights are equal.
type Result struct {
	// Network is the network that was run; see [demonet.Result].
	Network string `json:"network"`
	// Value is a number to display. It is text because it may not be finite.
	Value string `json:"value"`
	// Checksum covers every bit of the result, as 16 hexadecimal digits.
	Checksum string `json:"checksum"`
}

func newResult(r demonet.Result) *Result {
	return &Result{Network: r.Network, Value: fmt.Sprintf("%.6g", r.Value), Checksum: fmt.Sprintf("%016x", r.Checksum)}
}
