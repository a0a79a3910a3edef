package inproc

import (
	"context"
	"os"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/unixsock"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// A client finds out that its server is in its own process by the socket file: the servers of this process are known by
// those they made, from the moment when they can be dialled until they do not accept any more. A file is known by
// device and inode, so neither another name for it nor a file that has taken its place misleads: as long as a socket
// listens, the kernel keeps the inode that it is bound to. A listener that was handed over (systemd) was bound by
// another process, and is dialled like that of a stranger.

// Listener is a server of this process, as its clients reach it.
type Listener struct {
	// Dial begins a session with a client, given its hello, and returns the client's end and the server's hello. The
	// caller closes the pipe.
	Dial func(ctx context.Context, hello message.Hello, limits wire.Limits) (*Pipe, message.Hello, error)
}

var listeners struct {
	mu sync.Mutex
	at map[unixsock.FileID]*Listener
}

// Announce lets clients of this process find the server by its socket file; the zero id is none.
func (l *Listener) Announce(id unixsock.FileID) {
	if id == (unixsock.FileID{}) {
		return
	}
	listeners.mu.Lock()
	defer listeners.mu.Unlock()
	if listeners.at == nil {
		listeners.at = map[unixsock.FileID]*Listener{}
	}
	listeners.at[id] = l
}

// Conceal ends that. It comes before the socket is closed: until then no other can have its inode.
func (l *Listener) Conceal(id unixsock.FileID) {
	listeners.mu.Lock()
	defer listeners.mu.Unlock()
	if listeners.at[id] == l {
		delete(listeners.at, id)
	}
}

// Find returns the server of this process that a client which dials the path would reach; nil for that of another
// process, or of none.
func Find(path string) *Listener {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	listeners.mu.Lock()
	defer listeners.mu.Unlock()
	return listeners.at[unixsock.FileOf(info)]
}
