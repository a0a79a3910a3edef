package keeper

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// fdPrefix begins the names of this package's descriptors in the service manager's store, beside the sockets.
const fdPrefix = "sharedtensor."

// firstPassed is the first descriptor that a service manager passes (SD_LISTEN_FDS_START in sd_listen_fds(3)).
const firstPassed = 3

// Systemd is the descriptor store of systemd (FileDescriptorStoreMax= in systemd.service(5)). The service manager
// passes the descriptors to the next process of the unit. Its methods are safe for concurrent use.
type Systemd struct {
	address net.UnixAddr
	most    int // descriptors in the store; 0 if the service manager does not report it

	mu     sync.Mutex
	stored map[string]*os.File // passed at the start and not removed; owned
	names  map[string]bool     // of all descriptors in the store
}

// errNotAService means that this process was not started by a service manager that accepts notifications.
var errNotAService = errors.New("NOTIFY_SOCKET is not set: use Type=notify and FileDescriptorStoreMax= in the unit")

// NewSystemd takes the descriptors that the service manager passed to this process (LISTEN_FDS and LISTEN_FDNAMES) and
// that an earlier process of the unit had stored. It leaves other descriptors, and the environment, as they are. Call
// it once. It fails if the process is not a service that may send notifications.
func NewSystemd() (*Systemd, error) {
	address := os.Getenv("NOTIFY_SOCKET")
	if !strings.HasPrefix(address, "/") && !strings.HasPrefix(address, "@") {
		return nil, errNotAService
	}
	s := &Systemd{address: net.UnixAddr{Name: address, Net: "unixgram"}, stored: passed(), names: map[string]bool{}}
	for name := range s.stored {
		s.names[name] = true
	}
	s.most, _ = strconv.Atoi(os.Getenv("FDSTORE")) // not set before systemd 254
	return s, nil
}

// passed returns the passed descriptors of this package by name.
func passed() map[string]*os.File {
	stored := map[string]*os.File{}
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return stored
	}
	count, _ := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	for i := range min(count, len(names)) {
		if name, ours := strings.CutPrefix(names[i], fdPrefix); ours {
			syscall.CloseOnExec(firstPassed + i)
			stored[name] = os.NewFile(uintptr(firstPassed+i), name)
		}
	}
	return stored
}

// Put stores a duplicate of f under a name, which it borrows. It returns when the service manager has it. It fails if the
// store is full, which systemd reports from version 254 on ($FDSTORE); earlier versions close the descriptor.
func (s *Systemd) Put(name string, f *os.File) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := s.reserve(name); err != nil {
		return err
	}
	fd, err := duplicate(f)
	if err == nil {
		defer fd.Close()
		err = s.notify("FDSTORE=1\nFDPOLL=0\nFDNAME="+fdPrefix+name, fd)
	}
	if err == nil {
		err = s.barrier()
	}
	if err != nil {
		return fmt.Errorf("store %s with the service manager: %w", name, err)
	}
	return nil
}

// reserve counts a descriptor in the store.
func (s *Systemd) reserve(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most > 0 && len(s.names) >= s.most && !s.names[name] {
		return fmt.Errorf("the service manager's store is full with %d descriptors: increase FileDescriptorStoreMax= in the unit", s.most)
	}
	s.names[name] = true // also if Put fails, because the service manager may have it
	return nil
}

// Remove removes the descriptors of the names from the store. Unknown names are no error.
func (s *Systemd) Remove(names ...string) error {
	for _, name := range names {
		if err := s.notify("FDSTOREREMOVE=1\nFDNAME="+fdPrefix+name, nil); err != nil {
			return fmt.Errorf("remove %s from the service manager's store: %w", name, err)
		}
		s.mu.Lock()
		delete(s.names, name)
		if f := s.stored[name]; f != nil {
			delete(s.stored, name)
			f.Close()
		}
		s.mu.Unlock()
	}
	return nil
}

// Stored returns duplicates of what an earlier process of the unit has stored, without what was removed since. The caller
// owns them.
func (s *Systemd) Stored() (map[string]*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stored := map[string]*os.File{}
	for name, f := range s.stored {
		own, err := duplicate(f)
		if err != nil {
			closeAll(slices.Collect(maps.Values(stored)))
			return nil, err
		}
		stored[name] = own
	}
	return stored, nil
}

// Close closes the descriptors of this process. The service manager keeps everything.
func (s *Systemd) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	closeAll(slices.Collect(maps.Values(s.stored)))
	s.stored = nil
	return nil
}

// notify sends one message of sd_notify(3).
func (s *Systemd) notify(state string, file *os.File) error {
	c, err := net.DialUnix("unixgram", nil, &s.address)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetWriteDeadline(time.Now().Add(answerTime)); err != nil {
		return err
	}
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Write(func(fd uintptr) bool { // package net sends no descriptors on connected datagram sockets
		failed = unix.Sendmsg(int(fd), []byte(state), rights, nil, unix.MSG_NOSIGNAL)
		return failed != unix.EAGAIN
	}); err != nil {
		return err
	}
	return os.NewSyscallError("sendmsg", failed)
}

// barrier waits until the service manager has processed all earlier messages (BARRIER=1 in sd_notify(3)): it then
// closes the write end of the pipe.
func (s *Systemd) barrier() error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	err = s.notify("BARRIER=1", write)
	write.Close()
	if err != nil {
		return err
	}
	if err := read.SetReadDeadline(time.Now().Add(answerTime)); err != nil {
		return err
	}
	if _, err := read.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the service manager does not answer: %w", err)
	}
	return nil
}
