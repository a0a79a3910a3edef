package client

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing/synctest"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// pipeOwner is an owner of this process, for tests with a synthetic clock. It panics on errors, which fails the test.
type pipeOwner struct {
	ends    chan *pipeEnd
	stopped atomic.Bool
}

// pipeEnd is the owner's end of one connection.
type pipeEnd struct{ pipe *transport.Pipe }

func newPipeOwner() *pipeOwner { return &pipeOwner{ends: make(chan *pipeEnd, 100)} }

// client returns a client of the owner that is not connected. All its connections accept offers.
func (o *pipeOwner) client() *Client {
	return New(Config{Log: slog.New(slog.DiscardHandler), DialSelf: func() (*transport.Pipe, message.Hello, error) {
		if o.stopped.Load() {
			return nil, message.Hello{}, errBroken
		}
		mine, theirs := transport.NewPipe(wire.Limits{}, wire.Limits{})
		o.ends <- &pipeEnd{mine}
		return theirs, message.Hello{Server: "one"}, nil
	}})
}

// stop makes the owner refuse connections until start.
func (o *pipeOwner) stop()  { o.stopped.Store(true) }
func (o *pipeOwner) start() { o.stopped.Store(false) }

// next returns the owner's end of the next connection.
func (o *pipeOwner) next() *pipeEnd { return <-o.ends }

// pipedTo returns the owner's end of a connection that a client serves. It accepts offers.
func pipedTo(c *Client) (end *pipeEnd, used <-chan struct{}) {
	mine, theirs := transport.NewPipe(wire.Limits{}, wire.Limits{})
	conn := newOwn(theirs, message.Hello{Server: "one"})
	conn.offers = true
	go conn.read()
	return &pipeEnd{mine}, (&fakeOwner{conn: conn}).begin(c)
}

// request receives a request with an operation and decodes its body. It returns its id.
func (e *pipeEnd) request(op message.Op, body ...any) uint64 {
	frame, err := e.pipe.Receive()
	must(err)
	request, err := message.ParseRequest(frame.Body)
	must(err)
	if request.Op != op {
		panic("the request has another operation")
	}
	for _, into := range body {
		must(message.UnmarshalPayload(request.Body, into))
	}
	return frame.ID
}

// respond answers a request, with an empty body if there is none.
func (e *pipeEnd) respond(id uint64, body ...any) { e.send(wire.KindResponse, id, body...) }

// event sends an event of a request.
func (e *pipeEnd) event(id uint64, body any) { e.send(wire.KindEvent, id, body) }

// refuse answers a request with an error.
func (e *pipeEnd) refuse(id uint64, code message.Code) {
	e.send(wire.KindError, id, message.Error{Code: code, Message: "no"})
}

func (e *pipeEnd) send(kind wire.Kind, id uint64, body ...any) {
	var encoded []byte
	for _, b := range body {
		var err error
		encoded, err = message.MarshalPayload(b)
		must(err)
	}
	must(e.pipe.Send(kind, id, encoded))
}

// idle checks that the client has sent nothing that was not received, when all goroutines wait.
func (e *pipeEnd) idle() {
	synctest.Wait()
	if e.pipe.Buffered() {
		panic("the client has sent a request")
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

var errBroken = errors.New("broken")
