package unixsock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// EnvBasePath is the environment variable that sets the base path of sockets where the program itself names none.
const EnvBasePath = "SHARED_TENSOR_BASE_PATH"

// maxSocketPath is what fits sockaddr_un.sun_path with its final zero byte (unix(7)).
const maxSocketPath = 107

// SocketPath is where an owner listens: base, a dash, the device index, ".sock". An empty base stands for the value of
// [EnvBasePath], else $XDG_RUNTIME_DIR/shared-tensor, else /tmp/shared-tensor-UID/shared-tensor. An explicit base
// goes before the environment. Errors are [ErrConfiguration].
func SocketPath(base string, index int) (string, error) {
	if index < 0 {
		return "", status.Configuration(fmt.Errorf("%w: device index %d: it must be 0 or more", status.ErrInvalid, index))
	}
	if base == "" {
		base = DefaultBase()
	}
	path := base + "-" + strconv.Itoa(index) + ".sock"
	return path, CheckSocketPath(path)
}

// DefaultBase is the base path where none was given.
func DefaultBase() string {
	if base := os.Getenv(EnvBasePath); base != "" {
		return base
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "shared-tensor")
	}
	return filepath.Join(privateDirectory(), "shared-tensor")
}

// privateDirectory is the directory that is made for sockets where the user has none of his own. Anybody can make one
// of that name before.
func privateDirectory() string {
	return filepath.Join(os.TempDir(), "shared-tensor-"+strconv.Itoa(os.Getuid()))
}

// CheckSocketPath refuses what the kernel would cut off or take for an abstract name.
func CheckSocketPath(path string) error {
	switch {
	case path == "":
		return status.Configuration(fmt.Errorf("%w: the socket path is empty", status.ErrInvalid))
	case path[0] == '@' || path[0] == 0:
		return status.Configuration(fmt.Errorf("%w: socket %q: abstract sockets have no permissions, use a path", status.ErrInvalid, path))
	case len(path) > maxSocketPath:
		return status.Configuration(fmt.Errorf("%w: socket %q has %d bytes; a socket path has at most %d, use a shorter directory",
			status.ErrInvalid, path, len(path), maxSocketPath))
	}
	return nil
}

// socketDirectory makes the directory of a socket, mode 0700, where it is not there yet, and refuses one that other
// users could write or replace: whoever can do that can put a socket of his own in the place of ours. The directory
// that we make for ourselves must be for nobody else at all; one that the user has chosen may be read by others, for
// they cannot connect to the socket in it.
func socketDirectory(path string) error {
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("socket directory: %w", err)
	}
	info, err := os.Lstat(dir)
	if err == nil && info.Mode()&os.ModeSymlink != 0 { // whose it is decides where it leads
		if err := trusted(dir, info); err != nil {
			return err
		}
		info, err = os.Stat(dir)
	}
	if err != nil {
		return fmt.Errorf("socket directory: %w", err)
	}
	if !info.IsDir() {
		return status.Configuration(fmt.Errorf("%w: socket directory %s is not a directory", status.ErrInvalid, dir))
	}
	if err := trusted(dir, info); err != nil {
		return err
	}
	switch mode := info.Mode().Perm(); {
	case mode&0o022 != 0:
		return fmt.Errorf("%w: socket directory %s has mode %#o: others may write it; run chmod go-w on it or choose a directory of your own",
			status.ErrPermission, dir, mode)
	case mode&0o077 != 0 && dir == privateDirectory():
		return fmt.Errorf("%w: socket directory %s has mode %#o and must have 0700: run chmod 700 on it", status.ErrPermission, dir, mode)
	}
	return nil
}

// trusted refuses a directory, or a link to one, of another user than this process's and root.
func trusted(dir string, info os.FileInfo) error {
	if uid, ok := ownerOf(info); ok && uid != 0 && uid != uint32(os.Getuid()) {
		return fmt.Errorf("%w: socket directory %s belongs to uid %d, this process runs as uid %d", status.ErrPermission, dir, uid, os.Getuid())
	}
	return nil
}
