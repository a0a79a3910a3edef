//go:build !linux

package term

import (
	"errors"
	"io"
	"os"
)

// Screen is not supported on this system: top prints one view after another.
type Screen struct{}

// OpenScreen returns nil and false.
func OpenScreen(io.Reader, io.Writer) (*Screen, bool, error) { return nil, false, nil }

// Enter returns errors.ErrUnsupported.
func (*Screen) Enter() error { return errors.ErrUnsupported }

// Leave returns errors.ErrUnsupported.
func (*Screen) Leave() error { return errors.ErrUnsupported }

// Draw returns errors.ErrUnsupported.
func (*Screen) Draw(string) error { return errors.ErrUnsupported }

// Read returns errors.ErrUnsupported.
func (*Screen) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }

// Size returns 80 by 24.
func (*Screen) Size() (width, height int) { return 80, 24 }

// Resized returns nil.
func (*Screen) Resized() <-chan os.Signal { return nil }
