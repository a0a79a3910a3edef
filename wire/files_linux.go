package wire

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// FilesOf returns Files with duplicates of the descriptors of files, which it borrows.
func FilesOf(files []*os.File) (*Files, error) {
	fds, err := fileDescriptors(files)
	if err != nil {
		return nil, err
	}
	for i, fd := range fds {
		if fds[i], err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			_ = closeDescriptors(fds[:i])
			return nil, os.NewSyscallError("duplicate a descriptor", err)
		}
	}
	runtime.KeepAlive(files)
	return newFiles(fds), nil
}

// sizeOf returns the size of the file behind a descriptor, or 0 if it has none.
func sizeOf(fd int) int64 {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0
	}
	return st.Size
}
