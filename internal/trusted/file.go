// Package trusted reads files that give rights. They are safe to use only if other users cannot write them.
package trusted

import (
	"fmt"
	"io"
	"os"

	"github.com/sharedtensor/sharedtensor/internal/userns"
)

// ReadFile returns the content of a regular file of at most limit bytes, which only root and the user of this process can write.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // best effort: the file was only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch mode := info.Mode(); {
	case !mode.IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case mode.Perm()&0o022 != 0:
		return nil, fmt.Errorf("%s has mode %#o: others may write it; run chmod go-w on it", path, mode.Perm())
	}
	if uid, known := ownerOf(info); known && uid != 0 && !userns.Self(uint32(uid)) {
		return nil, fmt.Errorf("%s belongs to uid %d; it must belong to root or to uid %d", path, uid, os.Geteuid())
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", path, limit)
	}
	return data, err
}
