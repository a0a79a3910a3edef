package module

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

const (
	// readAheadLead is how far a load's files are read into the page cache ahead of copying: enough concurrent requests
	// for a disk, and little compared with a model.
	readAheadLead = 64 << 20
	// readAheadHead is how far they are read before the first byte is copied, while memory is allocated.
	readAheadHead = 512 << 20
	// readAheadPiece is the size of one request.
	readAheadPiece = 4 << 20
	// readAheadFrom is the minimum size of a load for read-ahead; below it the kernel's own read-ahead suffices.
	readAheadFrom = 16 << 20
)

// readAhead makes the kernel read a load's extents ahead of the copy, so that the disk works while one core copies.
type readAhead struct {
	files   []*safetensors.File
	extents []extent
	copied  atomic.Int64  // bytes of the extents, in order
	moved   chan struct{} // signalled after copied has grown
	stopped chan struct{}
	done    sync.WaitGroup
}

// startReadAhead starts the goroutine that requests data; stop ends it. It returns nil for a small load.
func startReadAhead(files []*safetensors.File, extents []extent) *readAhead {
	total := int64(0)
	for _, e := range extents {
		total += e.bytes
	}
	if total < readAheadFrom {
		return nil
	}
	// copyWindows consumes the extents.
	r := &readAhead{files: files, extents: slices.Clone(extents), moved: make(chan struct{}, 1), stopped: make(chan struct{})}
	r.done.Go(r.run)
	return r
}

// advance records n more copied bytes.
func (r *readAhead) advance(n int64) {
	if r == nil {
		return
	}
	r.copied.Add(n)
	select {
	case r.moved <- struct{}{}:
	default:
	}
}

// stop returns when the goroutine has ended; the files can be closed then.
func (r *readAhead) stop() {
	if r != nil {
		close(r.stopped)
		r.done.Wait()
	}
}

func (r *readAhead) run() {
	asked := int64(0)
	for _, e := range r.extents {
		for at := int64(0); at < e.bytes; at += readAheadPiece {
			if !r.wait(asked) {
				return
			}
			n := min(readAheadPiece, e.bytes-at)
			r.files[e.file].ReadAhead(e.src+at, n)
			asked += n
		}
	}
}

// leads reports whether the requests are far enough ahead and must wait for the copy.
func (r *readAhead) leads(asked int64) bool {
	copied := r.copied.Load()
	if copied == 0 {
		return asked >= readAheadHead
	}
	return asked-copied >= readAheadLead
}

// wait returns true when more may be requested, or false after stop.
func (r *readAhead) wait(asked int64) bool {
	for r.leads(asked) {
		select {
		case <-r.moved:
		case <-r.stopped:
			return false
		}
	}
	select {
	case <-r.stopped:
		return false
	default:
		return true
	}
}
