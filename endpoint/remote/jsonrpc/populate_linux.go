package jsonrpc

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
)

// populatePiece is how much of the memory is mapped at once: enough for the call to cost nothing, little enough to stay ahead of a reader.
const populatePiece = 16 << 20

// populateAhead has the kernel map the pages of new host memory while the bytes for them arrive, instead of fault by fault in the
// thread that reads the connection. It is advice: what is not mapped is mapped when it is written. The caller calls the function before the
// memory may be closed.
func populateAhead(mem driver.Memory) (stop func()) {
	mapped, ok := mem.(driver.Mapped)
	if !ok || mem.Bytes() < populatePiece {
		return func() {}
	}
	var running sync.WaitGroup
	ended := make(chan struct{})
	running.Go(func() { populate(mapped.Data(), ended) })
	return func() { close(ended); running.Wait() }
}

func populate(data []byte, ended <-chan struct{}) {
	for len(data) > 0 {
		n := min(populatePiece, len(data))
		select {
		case <-ended:
			return
		default:
		}
		if unix.Madvise(data[:n], unix.MADV_POPULATE_WRITE) != nil {
			return
		}
		data = data[n:]
	}
}
