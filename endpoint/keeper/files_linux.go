package keeper

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// duplicate returns a second descriptor of a file. The caller owns it.
func duplicate(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var failed error
	if err := raw.Control(func(old uintptr) { fd, failed = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, os.NewSyscallError("duplicate a descriptor", failed)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// checkMemory refuses files that cannot be memory.
func checkMemory(f *os.File) error {
	if info, err := f.Stat(); err != nil || info.Mode()&(os.ModeSocket|os.ModeNamedPipe|os.ModeDir) != 0 {
		return errors.New("the descriptor is not memory")
	}
	return nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// memoryFile returns a file of n zero bytes in memory, which cannot grow. The caller owns it.
func memoryFile(name string, n int64) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err = f.Truncate(n); err == nil {
		_, err = control(f, unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
