package inference

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// shmFolder is the directory of shm_open's files.
const shmFolder = "/dev/shm/"

// openSystemRegion opens memory that a client of a user has created with shm_open. Errors do not reveal whether other keys
// exist.
func openSystemRegion(key string, uid uint32, offset, bytes uint64) (regionMemory, error) {
	name := strings.TrimPrefix(key, "/")
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || len(name) > 255 {
		return nil, fmt.Errorf("%w: the key is not a valid name for shm_open", ErrInvalid)
	}
	fd, err := unix.Open(shmFolder+name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: Unable to open shared memory region", ErrInvalid)
	}
	m := &systemMemory{file: os.NewFile(uintptr(fd), "shared memory"), offset: int64(offset)}
	if err := m.check(uid, offset, bytes); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

// systemMemory is a shared memory file. It is accessed with system calls and never mapped: if the client shrank a
// mapped file, an access would end the process.
type systemMemory struct {
	file   *os.File
	offset int64
}

// check returns an error if the file is not shared memory of the user, or does not contain the region. The gateway may
// open files that the client may not.
func (m *systemMemory) check(uid uint32, offset, bytes uint64) error {
	var stat unix.Stat_t
	var fs unix.Statfs_t
	fd := int(m.file.Fd())
	if err := errors.Join(unix.Fstat(fd, &stat), unix.Fstatfs(fd, &fs)); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG || fs.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("%w: the key does not name shared memory", ErrInvalid)
	}
	if stat.Uid != uid {
		return fmt.Errorf("%w: Unable to open shared memory region", ErrInvalid)
	}
	size := uint64(max(stat.Size, 0))
	if offset > size || bytes > size-offset {
		return fmt.Errorf("%w: the region has %d bytes from %d on, and the shared memory %d", ErrInvalid, bytes, offset, size)
	}
	return nil
}

func (m *systemMemory) readAt(p []byte, at int64) error {
	_, err := m.file.ReadAt(p, m.offset+at)
	if errors.Is(err, io.EOF) {
		return errShrunk
	}
	return err
}

// writeAt extends the file only if the client shrinks it between the check and the write.
func (m *systemMemory) writeAt(p []byte, at int64) error {
	info, err := m.file.Stat()
	if err != nil {
		return err
	}
	if m.offset+at+int64(len(p)) > info.Size() {
		return errShrunk
	}
	_, err = m.file.WriteAt(p, m.offset+at)
	return err
}

func (m *systemMemory) close() error { return m.file.Close() }

// errShrunk is returned if the file has become smaller than its region.
var errShrunk = fmt.Errorf("%w: the shared memory is smaller than it was when it was registered", ErrInvalid)
