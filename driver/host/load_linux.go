package host

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
)

// loadPiece is the number of bytes copied between two calls of progress, and between two checks whether the memory was
// closed.
const loadPiece = 4 << 20

// LoadAt implements [driver.Loader]. A source that ends early is [io.ErrUnexpectedEOF]; the bytes copied before remain.
//
// Bytes of a regular file are copied inside the kernel, from the page cache into the memfd. This is faster than a read
// into the mapping, and even than a read into fresh private memory, because no page is cleared before it is overwritten
// and none faults. It uses one goroutine: the kernel allows one writer of a file at a time.
func (m *memory) LoadAt(src io.ReaderAt, srcOff, dstOff, n int64, progress func(bytes int64)) error {
	if err := m.loadAt(src, srcOff, dstOff, n, progress); err != nil {
		return m.device.opError("load", err)
	}
	return nil
}

func (m *memory) loadAt(src io.ReaderAt, srcOff, dstOff, n int64, progress func(bytes int64)) error {
	m.mu.RLock()
	err := m.checkWriteLocked(dstOff, n)
	m.mu.RUnlock()
	if err != nil {
		return err
	}
	if srcOff < 0 || srcOff > math.MaxInt64-n {
		return fmt.Errorf("%w: %d bytes of the source at offset %d", driver.ErrInvalid, n, srcOff)
	}
	// The source is foreign code that may be slow or use this memory: no lock is held while it runs.
	if err := m.pin(true); err != nil {
		return err
	}
	defer m.unpin(true)
	copyPiece := func(srcOff, dstOff int64, n int) (int, error) { return m.readPiece(src, srcOff, dstOff, n) }
	if k := m.kernelCopier(src, dstOff+n); k != nil {
		defer k.close()
		copyPiece = k.copyPiece
	}
	for done := int64(0); done < n; {
		k, err := copyPiece(srcOff+done, dstOff+done, int(min(loadPiece, n-done)))
		done += int64(k)
		if k > 0 && progress != nil {
			progress(int64(k))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readPiece reads directly into the mapping, which the caller has pinned.
func (m *memory) readPiece(src io.ReaderAt, srcOff, dstOff int64, n int) (int, error) {
	if m.isClosed() {
		return 0, os.ErrClosed
	}
	k, err := src.ReadAt(m.data[dstOff:dstOff+int64(n)], srcOff)
	switch {
	case k == n:
		return k, nil
	case err == nil || errors.Is(err, io.EOF):
		return k, io.ErrUnexpectedEOF
	}
	return k, err
}

// kernelCopier copies from a file to the memory inside the kernel.
type kernelCopier struct {
	m       *memory
	src     *os.File
	srcBase int64 // added to offsets of the source
	srcEnd  int64 // the end of the source, as an offset of the file
	dst     *os.File
}

// kernelCopier returns nil if the kernel cannot copy: the source is not a regular file, the memory is frozen, or the
// write could exceed a limit that ends the process.
func (m *memory) kernelCopier(src io.ReaderAt, end int64) *kernelCopier {
	k := &kernelCopier{m: m, srcEnd: math.MaxInt64}
	if section, ok := src.(*io.SectionReader); ok {
		outer, base, size := section.Outer()
		src, k.srcBase, k.srcEnd = outer, base, base+size
	}
	file, ok := src.(*os.File)
	if !ok {
		return nil
	}
	if st, err := file.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil
	}
	if fileSizeLimit() < m.span.fileOffset+end { // would raise SIGXFSZ
		return nil
	}
	k.src = file
	if k.dst = m.reopen(); k.dst == nil {
		return nil
	}
	return k
}

// reopen returns the memfd with a separate file position. sendfile writes at the position, and all duplicates of a
// descriptor share theirs.
func (m *memory) reopen() *os.File {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return nil
	}
	seals, err := unix.FcntlInt(uintptr(m.backing.fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&writeSeals != 0 {
		return nil
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(m.backing.fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), "memfd:sharedtensor")
}

func (k *kernelCopier) close() { k.dst.Close() }

func (k *kernelCopier) copyPiece(srcOff, dstOff int64, n int) (int, error) {
	if k.m.isClosed() {
		return 0, os.ErrClosed
	}
	if srcOff > k.srcEnd-k.srcBase {
		return 0, io.ErrUnexpectedEOF
	}
	want := int(min(int64(n), k.srcEnd-k.srcBase-srcOff))
	if _, err := k.dst.Seek(k.m.span.fileOffset+dstOff, io.SeekStart); err != nil {
		return 0, err
	}
	done, err := k.send(k.srcBase+srcOff, want)
	switch {
	case err == nil && done < n:
		return done, io.ErrUnexpectedEOF
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSYS):
		// The file system does not support it, or the memory was frozen meanwhile: the mapping always works.
		rest, err := k.m.readPiece(k.src, k.srcBase+srcOff+int64(done), dstOff+int64(done), want-done)
		return done + rest, err
	case err != nil:
		return done, refused("sendfile", int64(n), err)
	}
	return done, nil
}

// send moves up to n bytes of the file from offset off to the position of the memfd. Fewer without an error mean the
// end of the file.
func (k *kernelCopier) send(off int64, n int) (done int, err error) {
	conn, err := k.src.SyscallConn()
	if err != nil {
		return 0, err
	}
	controlErr := conn.Control(func(src uintptr) {
		for done < n {
			var sent int
			sent, err = unix.Sendfile(int(k.dst.Fd()), int(src), &off, n-done)
			if err == unix.EINTR || err == unix.EAGAIN {
				err = nil
				continue
			}
			if err != nil || sent == 0 {
				return
			}
			done += sent
		}
	})
	if controlErr != nil {
		return done, controlErr
	}
	return done, err
}
