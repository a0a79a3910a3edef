//go:build !linux

package persist

import (
	"errors"
	"os"
)

func newFile(string) (*os.File, error) { return nil, errors.ErrUnsupported }

func allocate(*os.File, int64) error { return nil }

func lock(*os.File) error { return errors.ErrUnsupported }

func unlock(*os.File) error { return errors.ErrUnsupported }

// Duplicate returns [errors.ErrUnsupported].
func Duplicate(*os.File) (*os.File, error) { return nil, errors.ErrUnsupported }
