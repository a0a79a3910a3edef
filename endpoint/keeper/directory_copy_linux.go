package keeper

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// copied is a copy of a file, or the reason why there is none.
type copied struct {
	file *os.File
	err  error
}

// copyAll copies several files at once, because one goroutine is slower than memory.
func copyAll(names []string, copyOne func(name string) (*os.File, error)) []copied {
	const workers = 4
	results := make([]copied, len(names))
	next := make(chan int)
	var work sync.WaitGroup
	for range min(workers, len(names)) {
		work.Go(func() {
			for i := range next {
				results[i].file, results[i].err = copyOne(names[i])
			}
		})
	}
	for i := range names {
		next <- i
	}
	close(next)
	work.Wait()
	return results
}

// sealedCopy returns sealed memory with the bytes of a file. The caller owns it.
func (d *Directory) sealedCopy(name string) (_ *os.File, err error) {
	path := d.file(name)
	file, err := d.open(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("sharedtensor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate("sharedtensor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	memory := os.NewFile(uintptr(fd), path)
	if err = copyBytes(memory, file, info.Size()); err == nil {
		_, err = control(memory, unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("copy %s into memory: %w", path, err), memory.Close())
	}
	return memory, nil
}

// copyPiece is the number of bytes between a read and a write: they stay in the processor's cache.
const copyPiece = 256 << 10

// copyBytes copies the first n bytes of a file into an empty one, and allocates them first.
func copyBytes(to, from *os.File, n int64) error {
	raw, err := to.SyscallConn()
	if err != nil {
		return err
	}
	failed := unix.EINTR
	if err := raw.Control(func(fd uintptr) {
		for failed == unix.EINTR {
			failed, _ = unix.Fallocate(int(fd), 0, 0, max(n, 1)).(unix.Errno)
		}
	}); err != nil {
		return err
	}
	if failed != 0 && failed != unix.EOPNOTSUPP {
		return fmt.Errorf("allocate %d bytes: %w", n, failed)
	}
	copied, err := io.CopyBuffer(writerOnly{io.NewOffsetWriter(to, 0)}, io.NewSectionReader(from, 0, n), make([]byte, copyPiece))
	if err == nil && copied != n {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// writerOnly hides the other methods of a writer.
type writerOnly struct{ io.Writer }

// control performs one fcntl call.
func control(f *os.File, command, argument int) (result int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { result, failed = unix.FcntlInt(fd, command, argument) }); err != nil {
		return 0, err
	}
	return result, os.NewSyscallError("fcntl", failed)
}
