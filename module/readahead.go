package module

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

const (
	// readAheadLead is how far a load's files are read into the page cache before their bytes are copied: enough
	// requests for a disk to work on at the same time, and little beside a model.
	readAheadLead = 64 << 20
	// readAheadHead is how far they are read before the first byte is copied, while the memory is taken.
	readAheadHead = 512 << 20
	// readAheadPiece is what is asked for at a time.
	readAheadPiece = 4 << 20
	// readAheadFrom is the size of a load from which it pays: below it the kernel's own read-ahead is enough.
	readAheadFrom = 16 << 20
)

// readAhead has the system read a load's extents some way ahead of the copying. A disk then always has work, also while
// one core copies.
type readAhead struct {
	files   []*safetensors.File
	extents []extent
	copied  atomic.Int64  // bytes of the extents, in their order
	moved   chan struct{} // after copied has grown
	stopped chan struct{}
	done    sync.WaitGroup
}

// startReadAhead starts the goroutine that asks, which stop ends. It returns nil for a load so small that it would not
// pay.
func startReadAhead(files []*safetensors.File, extents []extent) *readAhead {
	total := int64(0)
	for _, e := range extents {
		total += e.bytes
	}
	if total < readAheadFrom {
		return nil
	}
	// copyWindows takes from the extents while it works.
	r := &readAhead{files: files, extents: slices.Clone(extents), moved: make(chan struct{}, 1), stopped: make(chan struct{})}
	r.done.Go(r.run)
	return r
}

// advance says that n more bytes were copied.
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

// stop returns when the goroutine has ended: the files can be closed then.
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

// leads reports whether so much was asked for that the copying has to come first.
func (r *readAhead) leads(asked int64) bool {
	copied := r.copied.Load()
	if copied == 0 {
		return asked >= readAheadHead
	}
	return asked-copied >= readAheadLead
}

// wait returns when the lead over the copying allows for more, or false after stop.
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
