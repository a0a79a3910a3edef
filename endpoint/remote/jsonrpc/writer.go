package jsonrpc

import (
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
)

// Pieces that are on their way between a connection and the memory that they go to are so few and so small that they
// stay in the processor's cache.
const (
	pieces       = 4
	arrivedBytes = 256 << 10
)

// writer writes what arrives to memory, in a goroutine of its own: the kernel makes the pages of new memory while the
// connection is read. The bytes go through small buffers and not from the connection into the memory itself, where each
// page would fault and be cleared before the bytes come.
type writer struct {
	free chan []byte
	full chan piece
	done sync.WaitGroup

	mu  sync.Mutex
	err error
}

// piece is what goes to one place.
type piece struct {
	memory driver.Memory
	at     int64
	data   []byte
}

// startWriter starts one. The caller ends it with finish.
func startWriter() *writer {
	w := &writer{free: make(chan []byte, pieces), full: make(chan piece, pieces)}
	for range pieces {
		w.free <- nil // made when it is needed
	}
	w.done.Go(w.run)
	return w
}

func (w *writer) run() {
	for p := range w.full {
		if w.failed() == nil {
			if _, err := p.memory.WriteAt(p.data, p.at); err != nil {
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

// buffer is an empty piece of arrivedBytes, or why nothing more can be written.
func (w *writer) buffer() ([]byte, error) {
	b := <-w.free
	if b == nil {
		b = make([]byte, arrivedBytes)
	}
	return b, w.failed()
}

// write takes a piece.
func (w *writer) write(p piece) { w.full <- p }

// finish returns when everything is written, with the first error.
func (w *writer) finish() error {
	close(w.full)
	w.done.Wait()
	return w.err
}
