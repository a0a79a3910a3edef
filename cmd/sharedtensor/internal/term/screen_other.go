//go:build !linux

package term

import (
	"errors"
	"io"
	"os"
)

// Screen is a terminal that is drawn on. Here there is none: top prints one view after the other.
type Screen struct{}

// OpenScreen returns no terminal.
func OpenScreen(io.Reader, io.Writer) (*Screen, bool, error) { return nil, false, nil }

// Enter is not supported.
func (*Screen) Enter() error { return errors.ErrUnsupported }

// Leave is not supported.
func (*Screen) Leave() error { return errors.ErrUnsupported }

// Draw is not supported.
func (*Screen) Draw(string) error { return errors.ErrUnsupported }

// Read is not supported.
func (*Screen) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }

// Size is that of the smallest terminal in use.
func (*Screen) Size() (width, height int) { return 80, 24 }

// Resized never tells.
func (*Screen) Resized() <-chan os.Signal { return nil }
