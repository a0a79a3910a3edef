package modelwire

import (
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
)

// Size and number of the pieces between a connection and memory. They are small enough to stay in the processor's
// cache.
const (
	pieces       = 4
	arrivedBytes = 256 << 10
)

// writer writes received bytes to memory on a separate goroutine, so that the kernel allocates pages while the
// connection is read. The bytes pass through small buffers: reading from the connection directly into new memory would
// fault on each page and clear it first.
type writer struct {
	free chan []byte
	full chan piece
	done sync.WaitGroup

	mu  sync.Mutex
	err error
}

// piece is a run of bytes for one destination.
type piece struct {
	to   *Destination
	at   int64
	data []byte
}

// startWriter starts a writer. The caller ends it with finish.
func startWriter() *writer {
	w := &writer{free: make(chan []byte, pieces), full: make(chan piece, pieces)}
	for range pieces {
		w.free <- nil // allocated when needed
	}
	contain.In(&w.done, w.run, nil)
	return w
}

func (w *writer) run() {
	for p := range w.full {
		if w.failed() == nil {
			if err := contain.Call(func() error { return p.to.Store(p.at, p.data) }); err != nil {
				w.mu.Lock()
				w.err = err
				w.mu.Unlock()
			}
		}
		w.free <- p.data[:arrivedBytes]
	}
}

func (w *writer) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// buffer returns an empty piece of arrivedBytes, or the error that stopped the writer.
func (w *writer) buffer() ([]byte, error) {
	b := <-w.free
	if b == nil {
		b = make([]byte, arrivedBytes)
	}
	return b, w.failed()
}

// write queues a piece.
func (w *writer) write(p piece) { w.full <- p }

// finish waits until everything is written and returns the first error.
func (w *writer) finish() error {
	close(w.full)
	w.done.Wait()
	return w.err
}
