package wire

import (
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
)

// Files are descriptors that came with a frame. They are close-on-exec. They stay plain descriptors until taken. All
// methods are safe for concurrent use and on a nil *Files, which has none.
type Files struct {
	set     *descriptors
	cleanup runtime.Cleanup
}

// Hold keeps the descriptors counted in the [Limits.FileBudget] after Close, until the charge is released: for what
// keeps duplicates of them. It returns nil where nothing is counted.
func (f *Files) Hold() *Charge {
	if f == nil {
		return nil
	}
	f.set.mu.Lock()
	defer f.set.mu.Unlock()
	return f.set.charge.hold()
}

// descriptors is what Files holds, apart so that the cleanup does not keep Files alive.
type descriptors struct {
	mu sync.Mutex
	fd []int // -1 where taken or closed

	charge *Charge // nil when closed, or where nothing is counted

	objects []io.Closer // nil when closed
	count   int         // how many there were
}

// newFiles takes the descriptors.
func newFiles(fds []int) *Files {
	f := &Files{set: &descriptors{fd: fds}}
	f.cleanup = runtime.AddCleanup(f, func(d *descriptors) { _ = d.close() }, f.set)
	return f
}

// InProcessFiles are the Files of a frame that stays within a process: the items stand where its descriptors would. It
// takes the items: Close closes them.
func InProcessFiles(count []io.Closer) *Files {
	f := newFiles(nil)
	f.set.objects, f.set.count = count, len(count)
	return f
}

// InProcess are the items of [InProcessFiles], borrowed until Close; none after it, or of a frame from a socket.
func (f *Files) InProcess() []io.Closer {
	if f == nil {
		return nil
	}
	f.set.mu.Lock()
	defer f.set.mu.Unlock()
	return f.set.objects
}

// Len is how many descriptors, or items in their place, came, taken ones included.
func (f *Files) Len() int {
	if f == nil {
		return 0
	}
	f.set.mu.Lock()
	defer f.set.mu.Unlock()
	return len(f.set.fd) + f.set.count
}

// Take returns descriptor i, owned by the caller. It is nil where there is no such descriptor, or it was taken or
// closed before: an index that came from the peer needs no other check.
func (f *Files) Take(i int) *os.File {
	if f == nil {
		return nil
	}
	f.set.mu.Lock()
	defer f.set.mu.Unlock()
	if i < 0 || i >= len(f.set.fd) || f.set.fd[i] < 0 {
		return nil
	}
	fd := f.set.fd[i]
	f.set.fd[i] = -1
	return os.NewFile(uintptr(fd), "received")
}

// Size is the size of the file behind descriptor i, in bytes; 0 where there is no such descriptor, it was taken or
// closed before, or it has no size. A peer can say less of its memory than its descriptor keeps.
func (f *Files) Size(i int) int64 {
	if f == nil {
		return 0
	}
	f.set.mu.Lock()
	defer f.set.mu.Unlock()
	if i < 0 || i >= len(f.set.fd) || f.set.fd[i] < 0 {
		return 0
	}
	return sizeOf(f.set.fd[i])
}

// Close closes what was not taken. A second Close is nil.
func (f *Files) Close() error {
	if f == nil {
		return nil
	}
	f.cleanup.Stop()
	return f.set.close()
}

func (d *descriptors) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := closeDescriptors(d.fd)
	for i := range d.fd {
		d.fd[i] = -1
	}
	for _, item := range d.objects {
		err = errors.Join(err, item.Close())
	}
	d.objects = nil
	d.charge.Release()
	d.charge = nil
	return err
}
