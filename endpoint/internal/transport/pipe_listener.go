package transport

import (
	"context"
	"os"
	"sync"

	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// A client uses the socket file to detect that its server is in its own process. The server registers its socket files
// from the moment it can be dialled until it stops accepting. A file is identified by device and inode, so other names
// of the file and files that replaced it are handled correctly: the kernel keeps the inode of a bound socket while it
// listens. A listener that was handed over (systemd) was bound by another process and is dialled like a server in
// another process.

// PipeListener is the entry point of a server for clients in its own process.
type PipeListener struct {
	// Dial starts a session with a client and returns the client's end of the pipe and the server's hello. The caller
	// closes the pipe.
	Dial func(ctx context.Context, hello message.Hello, limits wire.Limits) (*Pipe, message.Hello, error)
}

var listeners struct {
	mu sync.Mutex
	at map[FileID]*PipeListener
}

// Announce registers the server's socket file for clients of this process. It ignores the zero id.
func (l *PipeListener) Announce(id FileID) {
	if id == (FileID{}) {
		return
	}
	listeners.mu.Lock()
	defer listeners.mu.Unlock()
	if listeners.at == nil {
		listeners.at = map[FileID]*PipeListener{}
	}
	listeners.at[id] = l
}

// Conceal reverts Announce. Call it before closing the socket, because another socket may reuse the inode afterwards.
func (l *PipeListener) Conceal(id FileID) {
	listeners.mu.Lock()
	defer listeners.mu.Unlock()
	if listeners.at[id] == l {
		delete(listeners.at, id)
	}
}

// FindListener returns the server of this process that listens at path, or nil if the server is in another process or does not
// exist.
func FindListener(path string) *PipeListener {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	listeners.mu.Lock()
	defer listeners.mu.Unlock()
	return listeners.at[FileOf(info)]
}

// RequestKey is the context key of a request.
type RequestKey struct{}

// Reentrant is the context of a request whose function may call its own server.
type Reentrant interface {
	// CallsBack is called before such a call is sent. The goroutine that runs the function may be the reader of the
	// session, and must stop being it.
	CallsBack()
}

// CallsBack notifies the request of ctx, if there is one, that its function calls its own server.
func CallsBack(ctx context.Context) {
	if r, is := ctx.Value(RequestKey{}).(Reentrant); is {
		r.CallsBack()
	}
}
