//go:build !linux

package cuda

import (
	"os"

	"github.com/sharedtensor/sharedtensor/driver"
)

func exportedFile(func(fd *int32) error) (*os.File, error) {
	return nil, &driver.UnsupportedError{Feature: "CUDA memory as a descriptor", Requires: "Linux"}
}

func duplicateFile(*os.File) (*os.File, error) { return exportedFile(nil) }
