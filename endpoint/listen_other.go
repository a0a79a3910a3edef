//go:build !linux

package endpoint

import (
	"net"
	"os"

	"github.com/sharedtensor/sharedtensor/driver"
)

// socket stands in where passing descriptors between processes is not supported.
type socket struct {
	path     string
	listener *net.UnixListener
	file     fileID
}

func listen(string, bool) (*socket, error) {
	return nil, &driver.UnsupportedError{Feature: "serving shared memory", Requires: "Linux"}
}

func (s *socket) close() error { return nil }

func (s *socket) lost() bool { return false }

func (s *socket) rebind() error { return nil }

func (s *socket) accepting() *net.UnixListener { return s.listener }

func (s *socket) id() fileID { return s.file }

func maxOpenFiles() int { return 1024 }

func fileOf(os.FileInfo) fileID { return fileID{} }

func ownerOf(os.FileInfo) (uid uint32, ok bool) { return 0, false }
