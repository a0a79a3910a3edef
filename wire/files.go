package wire

import (
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
)

// Files holds the descriptors that arrived with a frame. They are close-on-exec. All methods are safe for concurrent
// use. A nil *Files is empty.
type Files struct {
	set     *descriptors
	cleanup runtime.Cleanup
}

// descriptors is the content of Files. It is separate so that the cleanup does not keep Files reachable.
type descriptors struct {
	mu sync.Mutex
	fd []int // -1 if taken or closed

	charge *charge // nil if closed, or if nothing is counted

	objects []io.Closer // nil if closed
	count   int         // number of descriptors received
}

// newFiles takes ownership of fds.
func newFiles(fds []int) *Files {
	f := &Files{set: &descriptors{fd: fds}}
	f.cleanup = runtime.AddCleanup(f, func(d *descriptors) { _ = d.close() }, f.set)
	return f
}

// InProcessFiles returns the Files of a frame that stays within the process: objects replace its descriptors. It takes
// ownership of the objects, and Close closes them.
func InProcessFiles(objects []io.Closer) *Files {
	f := newFiles(nil)
	f.set.objects, f.set.count = objects, len(objects)
	return f
}

// InProcess returns the objects of [InProcessFiles], borrowed until Close. It returns nil after Close and for a frame
// from a socket.
func (f *Files) InProcess() []io.Closer {
	if f == nil {
		return nil
	}
	f.set.mu.Lock()
	defer f.set.mu.Unlock()
	return f.set.objects
}

// Len returns the number of descriptors or objects received, including those taken.
func (f *Files) Len() int {
	if f == nil {
		return 0
	}
	f.set.mu.Lock()
	defer f.set.mu.Unlock()
	return len(f.set.fd) + f.set.count
}

// Take returns descriptor i, owned by the caller. It returns nil if i is out of range, or if the descriptor was taken
// or closed. An index from the peer needs no other check.
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

// Size returns the size in bytes of the file behind descriptor i, or 0 if there is no such descriptor, it was taken or
// closed, or it has no size. A peer may declare less memory than its descriptor keeps.
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

// Close closes the descriptors that were not taken. A second Close returns nil.
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
	d.charge.closeFiles()
	d.charge = nil
	return err
}
