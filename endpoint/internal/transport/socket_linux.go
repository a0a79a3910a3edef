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
	path string
	lock *os.File

	mu       sync.Mutex
	listener *net.UnixListener
	open     Permissions
	file     FileID // id of the created socket file; zero if the socket was handed over
	closed   bool
	left     bool // a successor has the socket file and the lock
	borrowed bool // the predecessor still owns them
}

// Listen acquires the lock, removes the socket file of a dead owner, and listens. It fails with [ErrInUse] if an owner
// is still alive after wait.
func Listen(path string, open Permissions, wait time.Duration) (_ *Socket, err error) {
	if err := CheckSocketPath(path); err != nil {
		return nil, err
	}
	if err := socketDirectory(path); err != nil {
		return nil, err
	}
	s := &Socket{path: path, open: open}
	defer func() {
		if err != nil {
			_ = s.Close()
		}
	}()
	end := time.Now().Add(wait)
	if s.lock, err = lockFile(path+".lock", wait); err != nil {
		return nil, err
	}
	for {
		// A process that the last owner was starting has the listener until it executes its program.
		if err = s.bind(); !errors.Is(err, status.ErrInUse) || !time.Now().Before(end) {
			return s, err
		}
		time.Sleep(lockPause)
	}
}

// Inherit returns a socket that a predecessor in another process has handed over, with its lock. bound means that the
// predecessor created the socket file; lock is nil otherwise. It takes both files.
func Inherit(path string, open Permissions, listener, lock *os.File, bound bool) (*Socket, error) {
	l, err := net.FileListener(listener)
	listener.Close() // net.FileListener duplicates it
	if err != nil {
		if lock != nil {
			lock.Close()
		}
		return nil, err
	}
	s := &Socket{path: path, open: open, lock: lock, borrowed: true}
	var ok bool
	if s.listener, ok = l.(*net.UnixListener); !ok {
		if lock != nil {
			lock.Close()
		}
		return nil, errors.Join(fmt.Errorf("%w: the predecessor's socket is a %s", status.ErrInvalid, l.Addr().Network()), l.Close())
	}
	s.listener.SetUnlinkOnClose(false)
	if info, err := os.Lstat(path); err == nil && bound {
		s.file = FileOf(info)
	}
	return s, nil
}

// Own makes this process the recorded holder of an inherited lock, and the peer whose credentials new clients see.
func (s *Socket) Own() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw, err := s.listener.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	// A second listen(2) replaces the credentials that SO_PEERCRED reports to clients (unix(7)).
	if err := raw.Control(func(fd uintptr) { failed = syscall.Listen(int(fd), backlog) }); err != nil {
		return err
	}
	if failed != nil {
		return os.NewSyscallError("listen", failed)
	}
	s.borrowed = false
	if s.lock == nil {
		return nil
	}
	return writeHolder(s.lock)
}

// backlog is the length of the queue of clients; the kernel reduces it to its limit (somaxconn).
const backlog = 4096

// HandOver returns duplicates of the listener and of the lock, which is nil without one, for a successor. bound reports
// whether this process or its predecessor created the socket file. The caller owns the files.
func (s *Socket) HandOver() (listener, lock *os.File, bound bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, false, net.ErrClosed
	}
	if listener, err = duplicate(s.listener, "listener"); err != nil {
		return nil, nil, false, err
	}
	if s.lock != nil {
		if lock, err = duplicate(s.lock, s.lock.Name()); err != nil {
			listener.Close()
			return nil, nil, false, err
		}
	}
	return listener, lock, s.file != FileID{}, nil
}

// duplicate returns a second descriptor.
func duplicate(of syscall.Conn, name string) (*os.File, error) {
	raw, err := of.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var failed error
	syscall.ForkLock.RLock() // no child inherits it
	defer syscall.ForkLock.RUnlock()
	err = raw.Control(func(old uintptr) {
		if fd, failed = syscall.Dup(int(old)); failed == nil {
			syscall.CloseOnExec(fd)
		}
	})
	if err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, os.NewSyscallError("duplicate a descriptor", failed)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Leave closes this process's listener. The socket file and the lock stay, because a successor has them.
func (s *Socket) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.left && !s.closed {
		s.left = true
		s.listener.Close()
	}
}

// Left reports whether Leave was called.
func (s *Socket) Left() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left
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
	err = s.open.apply(s.path)
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

// Permit changes which users can connect. It leaves a socket that was handed over as it is.
func (s *Socket) Permit(open Permissions) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = open
	if s.closed || s.file == (FileID{}) {
		return nil
	}
	return open.apply(s.path)
}

// apply sets the group and the mode of a socket file. The group comes first, so that no other group gets its rights.
func (p Permissions) apply(path string) error {
	if p.Mode == 0 {
		p.Mode = 0o600
	}
	if p.Grouped {
		if err := os.Lchown(path, -1, int(p.Group)); err != nil {
			p.Mode |= p.Mode & 0o060 >> 3 // this process is not in the group: the server checks the credentials of everyone
		}
	}
	return os.Chmod(path, p.Mode)
}

// Lost reports whether the created socket file was removed or replaced.
func (s *Socket) Lost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.left || s.file == (FileID{}) {
		return false
	}
	info, err := os.Lstat(s.path)
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || err == nil && FileOf(info) != s.file
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
	lock, err := lockFile(s.path+".lock", 0)
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

// lockFile opens and locks the file. It fails with the process that still holds the lock after wait: the kernel releases the
// lock of a killed process only when it has freed the memory of the process. If the file is removed before it is locked,
// lockFile tries again.
func lockFile(path string, wait time.Duration) (*os.File, error) {
	for end := time.Now().Add(wait); ; {
		f, err := lockOnce(path)
		switch {
		case err == nil && hasName(f, path):
			return f, nil
		case err == nil:
			f.Close()
		case !errors.Is(err, status.ErrInUse) || !time.Now().Before(end):
			return nil, err
		default:
			time.Sleep(min(lockPause, time.Until(end)))
		}
	}
}

// lockPause is the time between two attempts to lock.
const lockPause = 10 * time.Millisecond

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
	if err := writeHolder(f); err != nil { // the pid is only informative, but a full disk should be reported early
		f.Close()
		return nil, err
	}
	return f, nil
}

// writeHolder writes the id of this process to the lock file.
func writeHolder(f *os.File) error {
	err := f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		return fmt.Errorf("lock file: %w", err)
	}
	return nil
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
	if s.left || s.borrowed {
		_ = s.listener.Close() // fails if it was left
		if s.lock != nil {
			return s.lock.Close()
		}
		return nil
	}
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
		_ = os.Remove(s.path + ".lock")
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

// writable reports whether the effective user of this process may create entries in a directory. It may not if the file
// system is mounted read-only.
func writable(dir string) bool {
	const effective = 0x200 // AT_EACCESS
	const writeAndSearch = 0x2 | 0x1
	return syscall.Faccessat(-100, dir, writeAndSearch, effective) == nil // -100 is AT_FDCWD; dir is absolute
}
