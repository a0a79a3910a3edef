package bulk

import (
	"runtime"
	"sync"

	"google.golang.org/grpc/mem"
)

// Borrow returns data as a buffer that calls release once, when the last reference to it is freed. Nobody may write to
// data before that. The caller has the first reference.
//
// A transport whose connection breaks drops some buffers without freeing them: those are released by the garbage
// collector. Earlier would be unsafe, for the transport may still be reading.
func Borrow(data []byte, release func()) mem.Buffer {
	m := &memory{data: data, release: sync.OnceFunc(release)}
	if mem.IsBelowBufferPoolingThreshold(cap(data)) {
		// The transport does not count references to so little: it would never be released.
		defer m.release()
		return mem.SliceBuffer(append([]byte(nil), data...))
	}
	m.cleanup = runtime.AddCleanup(m, func(release func()) { release() }, m.release)
	return mem.NewBuffer(&m.data, m)
}

// memory is the pool of one buffer, to which the last reference gives it back.
type memory struct {
	data    []byte
	release func()
	cleanup runtime.Cleanup
}

// Get is of no use here: nothing is ever taken from the pool.
func (m *memory) Get(length int) *[]byte {
	data := make([]byte, length)
	return &data
}

// Put hears that the last reference is freed.
func (m *memory) Put(*[]byte) {
	m.cleanup.Stop()
	m.release()
}
