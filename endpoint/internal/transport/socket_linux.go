package transport

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// Socket is a listening Unix socket with a lock that excludes other owners.
//
// The owner holds an flock on a lock file beside the socket. The kernel releases it when the process ends. An owner
// that shuts down removes the file while it holds the lock. After locking, an owner verifies that the file still has
// its name. Otherwise two owners could lock two files of the same name.
type Socket struct {
	path   string
	shared bool // other users may connect; the server checks their credentials
	lock   *os.File

	mu       sync.Mutex
	listener *net.UnixListener
	file     FileID // id of the created socket file; zero if the socket was handed over
	closed   bool
}

// Listen acquires the lock, removes the socket file of a dead owner, and listens. It fails with [ErrInUse] if an owner
// is alive. Every user can connect to a shared socket.
func Listen(path string, shared bool) (_ *Socket, err error) {
	if err := CheckSocketPath(path); err != nil {
		return nil, err
	}
	if err := socketDirectory(path); err != nil {
		return nil, err
	}
	s := &Socket{path: path, shared: shared}
	defer func() {
		if err != nil {
			_ = s.Close()
		}
	}()
	if s.lock, err = lockFile(path + ".lock"); err != nil {
		return nil, err
	}
	return s, s.bind()
}

// bind creates the socket file and listens on it. The caller holds the lock.
func (s *Socket) bind() error {
	if err := removeStale(s.path); err != nil {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.path, err)
	}
	l.SetUnlinkOnClose(false) // by then the file may belong to another owner
	mode := os.FileMode(0o600)
	if s.shared {
		mode = 0o666
	}
	err = os.Chmod(s.path, mode)
	var info os.FileInfo
	if err == nil {
		info, err = os.Lstat(s.path)
	}
	if err != nil {
		l.Close()
		return fmt.Errorf("listen: %w", err)
	}
	s.listener, s.file = l, FileOf(info)
	return nil
}

// Lost reports whether the created socket file was removed or replaced.
func (s *Socket) Lost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.file == (FileID{}) {
		return false
	}
	info, err := os.Lstat(s.path)
	return errors.Is(err, os.ErrNotExist) || err == nil && FileOf(info) != s.file
}

// Rebind replaces a lost socket file and listens on the new one. It closes the previous listener; its Accept fails.
func (s *Socket) Rebind() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	if err := socketDirectory(s.path); err != nil {
		return err
	}
	if err := s.relock(); err != nil {
		return err
	}
	before := s.listener
	if err := s.bind(); err != nil {
		return err
	}
	before.Close()
	return nil
}

// relock locks the file that now has the lock's name, if it is another file. Otherwise a second owner could start.
func (s *Socket) relock() error {
	here, err := s.lock.Stat()
	if err != nil {
		return err
	}
	if there, err := os.Lstat(s.path + ".lock"); err == nil && os.SameFile(here, there) {
		return nil
	}
	lock, err := lockFile(s.path + ".lock")
	if err != nil {
		return err
	}
	s.lock.Close()
	s.lock = lock
	return nil
}

// Accepting returns the current listener.
func (s *Socket) Accepting() *net.UnixListener {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listener
}

// ID returns the id of the created socket file, or zero if there is none.
func (s *Socket) ID() FileID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.file
}

// lockFile opens and locks the file. It fails with the process that holds the lock. If the file is removed before it is
// locked, lockFile tries again.
func lockFile(path string) (*os.File, error) {
	for {
		f, err := lockOnce(path)
		if err != nil || hasName(f, path) {
			return f, err
		}
		f.Close()
	}
}

// hasName reports whether path refers to the open file f.
func hasName(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(path)
	return err == nil && os.SameFile(open, named)
}

// lockOnce opens and locks the file that currently has the name.
func lockOnce(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s is locked by %s", status.ErrInUse, path, lockHolder(f))
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil { // the pid is only informative, but a full disk should be reported early
		f.Close()
		return nil, fmt.Errorf("lock file: %w", err)
	}
	return f, nil
}

// lockHolder describes the process whose pid is in the lock file.
func lockHolder(f *os.File) string {
	var b [32]byte
	n, _ := f.ReadAt(b[:], 0)
	if pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n]))); err == nil {
		return "process " + strconv.Itoa(pid)
	}
	return "another process"
}

// removeStale removes a socket file without a listener. It does not touch other files. The caller holds the lock, so no
// owner can start between the check and the removal.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if info.Mode()&os.ModeSocket == 0 {
		return status.Configuration(fmt.Errorf("%w: %s exists and is not a socket; choose another path", status.ErrInvalid, path))
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
		return fmt.Errorf("%w: a process without the lock listens on %s", status.ErrInUse, path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%w: cannot determine whether the owner of %s is alive: %w", status.ErrInUse, path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("stale socket: %w", err)
	}
	return nil
}

// Close stops listening, removes the socket file unless it was replaced, and releases the lock. Call it once.
// Concurrent calls of Accept fail.
func (s *Socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var err error
	if s.listener != nil {
		err = s.listener.Close()
		if info, statErr := os.Lstat(s.path); statErr == nil && s.file != (FileID{}) && FileOf(info) == s.file {
			if left := os.Remove(s.path); !errors.Is(left, os.ErrNotExist) {
				err = errors.Join(err, left)
			}
		}
	}
	if s.lock != nil {
		// Only the holder of the lock removes the file. Best effort: a remaining file does not block the next owner.
		_ = os.Remove(s.lock.Name())
		s.lock.Close()
	}
	return err
}

// MaxOpenFiles returns the process's limit of open descriptors.
func MaxOpenFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1024
	}
	return int(min(limit.Cur, math.MaxInt32)) // RLIM_INFINITY is the largest number
}

// FileOf returns the id of the file that info describes.
func FileOf(info os.FileInfo) FileID {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return FileID{uint64(st.Dev), st.Ino}
	}
	return FileID{}
}

func ownerOf(info os.FileInfo) (uid uint32, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return st.Uid, true
}
