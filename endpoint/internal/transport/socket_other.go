//go:build !linux

package transport

import (
	"net"
	"os"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
)

// Socket is a placeholder for systems that cannot pass descriptors between processes.
type Socket struct {
	path     string
	listener *net.UnixListener
	file     FileID
}

// Listen fails because this system cannot pass descriptors.
func Listen(string, Permissions, time.Duration) (*Socket, error) {
	return nil, &driver.UnsupportedError{Feature: "serving shared memory", Requires: "Linux"}
}

// Close does nothing.
func (s *Socket) Close() error { return nil }

// Permit does nothing.
func (s *Socket) Permit(Permissions) error { return nil }

// Lost returns false.
func (s *Socket) Lost() bool { return false }

// Rebind does nothing.
func (s *Socket) Rebind() error { return nil }

// Accepting returns the listener that was handed over.
func (s *Socket) Accepting() *net.UnixListener { return s.listener }

// ID returns the zero id.
func (s *Socket) ID() FileID { return s.file }

// Inherit fails because this system cannot pass descriptors.
func Inherit(string, Permissions, *os.File, *os.File, bool) (*Socket, error) {
	return nil, &driver.UnsupportedError{Feature: "serving shared memory", Requires: "Linux"}
}

// Own does nothing.
func (s *Socket) Own() error { return nil }

// HandOver fails because this system cannot pass descriptors.
func (s *Socket) HandOver() (listener, lock *os.File, bound bool, err error) {
	return nil, nil, false, &driver.UnsupportedError{Feature: "serving shared memory", Requires: "Linux"}
}

// Leave does nothing.
func (s *Socket) Leave() {}

// Left returns false.
func (s *Socket) Left() bool { return false }

// MaxOpenFiles returns a conservative estimate.
func MaxOpenFiles() int { return 1024 }

// FileOf returns the zero id.
func FileOf(os.FileInfo) FileID { return FileID{} }

func ownerOf(os.FileInfo) (uid uint32, ok bool) { return 0, false }

func writable(string) bool { return false }
