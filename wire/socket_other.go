//go:build !linux

package wire

import (
	"errors"
	"net"
	"os"
)

var errClosed error = net.ErrClosed

var errLinuxOnly = errors.ErrUnsupported

type buffer struct{ data [bufferBytes]byte }

type source struct{ buf *buffer }

func (s *source) read([]byte) (int, []int, error) { return 0, nil, errLinuxOnly }

func (s *source) release() {}

type writer struct{}

func (w *writer) send(Kind, uint64, []byte, []*os.File) (bool, error) { return false, errLinuxOnly }

func (c *Conn) init() error {
	c.reader.limits = &c.limits
	return errLinuxOnly
}

func closeDescriptors([]int) error { return nil }

// Pipe fails with [errors.ErrUnsupported]: passing descriptors is written for Linux.
func Pipe(Limits) (a, b *Conn, err error) { return nil, nil, errLinuxOnly }
