//go:build !linux

package transport

import (
	"net"
	"os"

	"github.com/sharedtensor/sharedtensor/driver"
)

// Socket is a placeholder for systems that cannot pass descriptors between processes.
type Socket struct {
	path     string
	listener *net.UnixListener
	file     FileID
}

// Listen fails because this system cannot pass descriptors.
func Listen(string, bool) (*Socket, error) {
	return nil, &driver.UnsupportedError{Feature: "serving shared memory", Requires: "Linux"}
}

// Close does nothing.
func (s *Socket) Close() error { return nil }

// Lost returns false.
func (s *Socket) Lost() bool { return false }

// Rebind does nothing.
func (s *Socket) Rebind() error { return nil }

// Accepting returns the listener that was handed over.
func (s *Socket) Accepting() *net.UnixListener { return s.listener }

// ID returns the zero id.
func (s *Socket) ID() FileID { return s.file }

// MaxOpenFiles returns a conservative estimate.
func MaxOpenFiles() int { return 1024 }

// FileOf returns the zero id.
func FileOf(os.FileInfo) FileID { return FileID{} }

func ownerOf(os.FileInfo) (uid uint32, ok bool) { return 0, false }
