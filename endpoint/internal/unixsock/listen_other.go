//go:build !linux

package unixsock

import (
	"net"
	"os"

	"github.com/sharedtensor/sharedtensor/driver"
)

// Socket stands in where passing descriptors between processes is not supported.
type Socket struct {
	path     string
	listener *net.UnixListener
	file     FileID
}

// Listen fails: descriptors cannot be passed here.
func Listen(string, bool) (*Socket, error) {
	return nil, &driver.UnsupportedError{Feature: "serving shared memory", Requires: "Linux"}
}

// Close does nothing.
func (s *Socket) Close() error { return nil }

// Lost is false.
func (s *Socket) Lost() bool { return false }

// Rebind does nothing.
func (s *Socket) Rebind() error { return nil }

// Accepting is the listener that was handed over.
func (s *Socket) Accepting() *net.UnixListener { return s.listener }

// ID is the zero id.
func (s *Socket) ID() FileID { return s.file }

// MaxOpenFiles is a cautious guess.
func MaxOpenFiles() int { return 1024 }

// FileOf is the zero id.
func FileOf(os.FileInfo) FileID { return FileID{} }

func ownerOf(os.FileInfo) (uid uint32, ok bool) { return 0, false }
