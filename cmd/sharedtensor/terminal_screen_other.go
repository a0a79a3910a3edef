//go:build !linux

package main

import (
	"errors"
	"io"
	"os"
)

// screen is a terminal that is drawn on. Here there is none: top prints one view after the other.
type screen struct{}

func openScreen(io.Reader, io.Writer) (*screen, bool, error) { return nil, false, nil }

func (*screen) enter() error              { return errors.ErrUnsupported }
func (*screen) leave() error              { return errors.ErrUnsupported }
func (*screen) write(string) error        { return errors.ErrUnsupported }
func (*screen) read([]byte) (int, error)  { return 0, errors.ErrUnsupported }
func (*screen) size() (width, height int) { return 80, 24 }
func (*screen) resized() <-chan os.Signal { return nil }
