// Package transport connects clients and servers: by a Unix socket between processes, and by a pipe with the same frames
// within one process. It manages the socket's path, directory, lock and listener.
package transport

import (
	"context"
	"os"
	"sync"

	"github.com/sharedtensor/sharedtensor/wire"
)

// Conn is a connection: a [wire.Conn] or a [Pipe].
type Conn interface {
	// Send, SendContext, SendLater, Receive, Buffered, Peer and Close are like those of [wire.Conn].
	Send(kind wire.Kind, id uint64, body []byte, files ...*os.File) error
	SendContext(ctx context.Context, kind wire.Kind, id uint64, body []byte, files ...*os.File) error
	SendLater(kind wire.Kind, id uint64, body []byte, files ...*os.File) error
	Receive() (wire.Frame, error)
	Buffered() bool
	Peer() wire.Credentials
	Close() error
}

// Receiver is a [wire.Receiver] or the receiver of a pipe.
type Receiver interface {
	// Run, Wait and Listen are like those of [wire.Receiver].
	Run() error
	Wait(ctx context.Context, answer <-chan wire.Frame) (wire.Frame, bool, error)
	Listen(more int)
}

// Bodies is a process-wide pool of buffers for the bodies of outgoing frames.
var Bodies bodyPool

type bodyPool struct{ pool sync.Pool }

// maxPooledBody is the maximum size of a pooled buffer.
const maxPooledBody = 64 << 10

// Get returns an empty buffer. The caller calls Put after the frame has been sent.
func (p *bodyPool) Get() *[]byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		return b
	}
	return new([]byte)
}

// Put returns a buffer to the pool unless it is larger than maxPooledBody.
func (p *bodyPool) Put(b *[]byte) {
	if cap(*b) <= maxPooledBody {
		*b = (*b)[:0]
		p.pool.Put(b)
	}
}
