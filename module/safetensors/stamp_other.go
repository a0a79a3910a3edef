//go:build !linux

package safetensors

import (
	"io/fs"
	"strconv"
)

// stampOf returns the time of modification of a file.
func stampOf(info fs.FileInfo) string { return strconv.FormatInt(info.ModTime().UnixNano(), 10) }
