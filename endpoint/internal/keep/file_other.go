//go:build !linux

package keep

import (
	"errors"
	"os"
)

func newFile(string) (*os.File, error) { return nil, errors.ErrUnsupported }

func lock(*os.File) error { return errors.ErrUnsupported }
