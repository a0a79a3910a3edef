// Package keeper holds the memory of an owner's versions while no owner runs. A server with a store of this package
// ([endpoint.ServerOptions.Keep]) leaves its versions to the next server, also if it is killed:
//
//	store, err := keeper.Connect(keeper.Options{Socket: socket + ".keep"})
//	…
//	defer store.Close()
//	server, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Keep: store})
//
// [Process] is a store in a separate process, which [Serve] runs and the command sharedtensor keep. [Systemd] is the
// descriptor store of systemd. Both hold descriptors and read nothing of them. [Directory] copies the memory into files,
// which needs no other process, but twice the bytes. Linux only.
package keeper

import (
	"errors"
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// The owner and the keeper exchange request and response frames over a Unix socket. Requests are performed and answered in
// order. There is no hello: both sides check the other's user with the kernel, and each request has the version of this
// protocol. The keeper performs all requests that were sent, also if their sender has ended since.
const protocol = 1

// operation is the kind of a request.
type operation uint8

const (
	opPut    operation = iota + 1 // Names names the descriptors of the frame, in their order
	opRemove                      // Names
	opNames                       // the answer has all names
	opGet                         // the answer's frame has the descriptors of Names
)

// opRefuse is a request that the keeper has refused. It is not sent.
const opRefuse operation = 0

// request is the body of a request frame.
type request struct {
	Protocol  uint32    `cbor:"1,keyasint"`
	Operation operation `cbor:"2,keyasint"`
	Names     []string  `cbor:"3,keyasint,omitempty"`
	New       bool      `cbor:"4,keyasint,omitempty"` // opPut fails if a name is in use
}

// response is the body of a response frame.
type response struct {
	Error string   `cbor:"1,keyasint,omitempty"`
	PID   int      `cbor:"2,keyasint,omitempty"`
	Names []string `cbor:"3,keyasint,omitempty"`
	Room  int      `cbor:"4,keyasint,omitempty"` // number of descriptors that the keeper can hold in addition
	// InUse means that the request failed because a name is in use.
	InUse bool `cbor:"5,keyasint,omitempty"`
	// Lost is the process id of an earlier keeper that was killed, as that keeper saw itself, or -1. It is 0 if there was
	// none, or after a descriptor was stored.
	Lost int `cbor:"6,keyasint,omitempty"`
}

const (
	// maxName is the maximum length of a name in bytes.
	maxName = 64
	// perFrame is the number of names or descriptors in one request.
	perFrame = 200
	// perGet is the number of descriptors in one answer. The keeper duplicates them, so it leaves that many unused, for
	// some owners at once.
	perGet = 32
	unused = 3*perGet + 32
	// maxHeld is the number of descriptors whose names fit one answer.
	maxHeld = 100_000
	// answerTime limits the wait for an answer. The keeper reads nothing but its socket, so it answers at once.
	answerTime = 5 * time.Second
)

// limits are the limits of the connections. Rings and polling would cost a keeper more than they save.
var limits = wire.Limits{Frame: 8 << 20, Files: perFrame, WriteTimeout: answerTime, FrameTimeout: answerTime, Ring: -1, BusyPoll: -1}

// checkName refuses names that are no plain file names.
func checkName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("a name of %d bytes: use 1 to %d", len(name), maxName)
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '-' {
			return fmt.Errorf("name %q: use letters, digits, dots and dashes", name)
		}
	}
	return nil
}

var errAnswer = errors.New("the keeper sent no valid answer")

// decode reads the body of a frame.
func decode(f wire.Frame, body any) error {
	if f.Release != nil {
		defer f.Release()
	}
	return message.Unmarshal(f.Body, body)
}
