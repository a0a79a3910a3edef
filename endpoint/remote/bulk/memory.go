package bulk

import (
	"runtime"
	"sync"

	"google.golang.org/grpc/mem"
)

// Borrow returns data as a buffer that calls release once, when its last reference is freed. data must not be written
// to before that. The caller owns the first reference.
//
// A transport drops some buffers without freeing them when its connection breaks. The garbage collector releases those.
// Releasing them earlier would be unsafe because the transport may still read them.
func Borrow(data []byte, release func()) mem.Buffer {
	m := &memory{data: data, release: sync.OnceFunc(release)}
	if mem.IsBelowBufferPoolingThreshold(cap(data)) {
		// The transport does not count references to buffers this small, so release would never be called.
		defer m.release()
		return mem.SliceBuffer(append([]byte(nil), data...))
	}
	m.cleanup = runtime.AddCleanup(m, func(release func()) { release() }, m.release)
	return mem.NewBuffer(&m.data, m)
}

// memory is the buffer pool of one buffer. The last reference returns the buffer to it.
type memory struct {
	data    []byte
	release func()
	cleanup runtime.Cleanup
}

// Get is never called: no buffer is taken from this pool.
func (m *memory) Get(length int) *[]byte {
	data := make([]byte, length)
	return &data
}

// Put is called when the last reference is freed.
func (m *memory) Put(*[]byte) {
	m.cleanup.Stop()
	m.release()
}
