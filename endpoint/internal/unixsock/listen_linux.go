package unixsock

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

// Socket is a listening Unix socket with the lock that makes its owner the only one.
//
// The lock file beside the socket is flock'ed for as long as the owner lives; the kernel lets go of it however the
// process ends. An owner that ends in order removes it while it still has the lock, and an owner that gets a lock looks
// whether the file still has its name: otherwise two owners could lock two files of one name.
type Socket struct {
	path   string
	shared bool // other users may connect: the server checks who they are
	lock   *os.File

	mu       sync.Mutex
	listener *net.UnixListener
	file     FileID // of the socket file that we made; zero for a socket that was handed to us
	closed   bool
}

// Listen takes the lock, removes the socket file of a dead owner, and listens. A live owner gives [ErrInUse] and is not
// disturbed. A shared socket can be connected to by every user.
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

// bind makes the socket file and listens on it. The caller has the lock.
func (s *Socket) bind() error {
	if err := removeStale(s.path); err != nil {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.path, err)
	}
	l.SetUnlinkOnClose(false) // by then the file may be another owner's
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

// Lost reports whether the socket file is not the one that was made: it was removed, or another took its place.
func (s *Socket) Lost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.file == (FileID{}) {
		return false
	}
	info, err := os.Lstat(s.path)
	return errors.Is(err, os.ErrNotExist) || err == nil && FileOf(info) != s.file
}

// Rebind listens on a new socket file in the place of one that was lost. A goroutine that accepts on the listener
// before finds it closed.
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

// relock takes the lock on the file that has its name now, where that is another one: without it a second owner could
// come.
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

// Accepting is the listener that there is now.
func (s *Socket) Accepting() *net.UnixListener {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listener
}

// ID is the socket file that was made; zero for none.
func (s *Socket) ID() FileID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.file
}

// lockFile opens and locks the file, or says which process holds it. A file that was removed before it was locked is
// let go of for the one that has the name now.
func lockFile(path string) (*os.File, error) {
	for {
		f, err := lockOnce(path)
		if err != nil || hasName(f, path) {
			return f, err
		}
		f.Close()
	}
}

// hasName reports whether path is the name of an open file.
func hasName(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(path)
	return err == nil && os.SameFile(open, named)
}

// lockOnce opens and locks the file that has the name at this moment.
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
	if err != nil { // the number is for people only, but a full disk is worth a word now
		f.Close()
		return nil, fmt.Errorf("lock file: %w", err)
	}
	return f, nil
}

// lockHolder is the process that wrote itself into the lock file, in words.
func lockHolder(f *os.File) string {
	var b [32]byte
	n, _ := f.ReadAt(b[:], 0)
	if pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n]))); err == nil {
		return "process " + strconv.Itoa(pid)
	}
	return "another process"
}

// removeStale removes a socket file that nobody listens on. Anything else at the path is left alone. The caller holds
// the lock, so no owner of ours can appear between the look and the removal.
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
		return fmt.Errorf("%w: a process that holds no lock listens on %s", status.ErrInUse, path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%w: %s is there but does not tell whether its owner lives: %w", status.ErrInUse, path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("stale socket: %w", err)
	}
	return nil
}

// Close stops listening, removes the socket file if it is still the one that listen made, and lets go of the lock. It
// is called once; what accepts meanwhile finds the listener closed.
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
		// Nobody else removes it while this process has the lock. One that stays keeps no owner away.
		_ = os.Remove(s.lock.Name())
		s.lock.Close()
	}
	return err
}

// MaxOpenFiles is how many descriptors this process may have.
func MaxOpenFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1024
	}
	return int(min(limit.Cur, math.MaxInt32)) // infinity is the largest number
}

// FileOf is the id of the file that info is about.
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
