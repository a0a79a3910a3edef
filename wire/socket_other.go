//go:build !linux

package wire

import (
	"context"
	"errors"
	"os"

	"github.com/sharedtensor/sharedtensor/wire/internal/ring"
)

var errLinuxOnly = errors.ErrUnsupported

type buffer struct{ data [bufferBytes]byte }

type source struct {
	buf  *buffer
	ring *ring.Consumer
}

func (s *source) read([]byte, bool, bool) (int, []int, error) { return 0, nil, errLinuxOnly }

func (s *source) release() {}

func (s *source) frameDone() {}

type sink struct{}

func (w *sink) write(context.Context, []byte, []byte, []int) (int, error) {
	return 0, errLinuxOnly
}

func (w *sink) bell() error { return errLinuxOnly }

func (w *sink) rest() []byte { return nil }

func fileDescriptors([]*os.File) ([]int, error) { return nil, errLinuxOnly }

func (c *Conn) init() error {
	c.reader.limits = &c.limits
	return errLinuxOnly
}

func closeDescriptors([]int) error { return nil }

func sizeOf(int) int64 { return 0 }

// FilesOf returns [errors.ErrUnsupported]: descriptors can be passed on Linux only.
func FilesOf([]*os.File) (*Files, error) { return nil, errLinuxOnly }

// Pipe returns [errors.ErrUnsupported]: descriptors can be passed on Linux only.
func Pipe(Limits) (a, b *Conn, err error) { return nil, nil, errLinuxOnly }

// PeerGroups returns [errors.ErrUnsupported].
func (c *Conn) PeerGroups() ([]uint32, error) { return nil, errLinuxOnly }
