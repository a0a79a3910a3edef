package demo

import (
	"errors"
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/demonet"
	"github.com/sharedtensor/sharedtensor/driver"
)

// What the director asks of a process.
const (
	opServe     = "serve"     // own the socket; with a path, load that model and publish it first
	opAttach    = "attach"    // acquire the newest version, and give back what was held before
	opCompute   = "compute"   // run the network once
	opStart     = "start"     // run the network over and over
	opStop      = "stop"      // end that, after one more run
	opHear      = "hear"      // wait for news of a version
	opPublish   = "publish"   // load a model, change it, and hand it to the owner
	opReconnect = "reconnect" // wait for the connection to another owner
	opHandOver  = "hand over" // publish the version that is attached
	opQuit      = "quit"      // clean up and end
)

// request is one line from the director.
type request struct {
	Op      string `json:"op"`
	Path    string `json:"path,omitempty"`
	Version uint64 `json:"version,omitempty"`
	Server  string `json:"server,omitempty"`
}

// quick reports whether the answer takes the same time whatever the size of the model.
func (r request) quick() bool {
	switch r.Op {
	case opAttach, opStart, opHear, opReconnect, opHandOver:
		return true
	}
	return false
}

// reply is one line to the director: progress, any number of times, and then the answer.
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
	Changed string        `json:"changed,omitempty"` // the tensor that is not what it was in the file
}

// progress is how far a load has come, in bytes.
type progress struct {
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
}

// codeOutOfMemory marks an error that answers for [driver.ErrOutOfMemory].
const codeOutOfMemory = "out of memory"

func errorReply(err error) reply {
	r := reply{Error: err.Error()}
	if errors.Is(err, driver.ErrOutOfMemory) {
		r.Code = codeOutOfMemory
	}
	return r
}

// err is the error that a reply carries, nil for an answer.
func (r reply) err() error {
	switch {
	case r.Error == "":
		return nil
	case r.Code == codeOutOfMemory:
		return &remoteError{text: r.Error, is: driver.ErrOutOfMemory}
	}
	return &remoteError{text: r.Error}
}

// remoteError is an error of another process. It answers for the sentinel that its code stands for.
type remoteError struct {
	text string
	is   error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.is }

// Result is what a process computed. Two processes agree when theirs are equal.
type Result struct {
	// Network is what was run; see [demonet.Result].
	Network string `json:"network"`
	// Value is a number of it to show. It is text because it need not be finite.
	Value string `json:"value"`
	// Checksum is over every bit of what was computed, in 16 hexadecimal digits.
	Checksum string `json:"checksum"`
}

func newResult(r demonet.Result) *Result {
	return &Result{Network: r.Network, Value: fmt.Sprintf("%.6g", r.Value), Checksum: fmt.Sprintf("%016x", r.Checksum)}
}
