package endpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
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
		return "", configuration(fmt.Errorf("%w: device index %d: it must be 0 or more", ErrInvalid, index))
	}
	if base == "" {
		base = defaultBase()
	}
	path := base + "-" + strconv.Itoa(index) + ".sock"
	return path, checkSocketPath(path)
}

// defaultBase is the base path where none was given.
func defaultBase() string {
	if base := os.Getenv(EnvBasePath); base != "" {
		return base
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "shared-tensor")
	}
	return filepath.Join(privateDirectory(), "shared-tensor")
}

// privateDirectory is the directory that is made for sockets where the user has none of his own. Anybody can make one of that name before.
func privateDirectory() string {
	return filepath.Join(os.TempDir(), "shared-tensor-"+strconv.Itoa(os.Getuid()))
}

// checkSocketPath refuses what the kernel would cut off or take for an abstract name.
func checkSocketPath(path string) error {
	switch {
	case path == "":
		return configuration(fmt.Errorf("%w: the socket path is empty", ErrInvalid))
	case path[0] == '@' || path[0] == 0:
		return configuration(fmt.Errorf("%w: socket %q: abstract sockets have no permissions, use a path", ErrInvalid, path))
	case len(path) > maxSocketPath:
		return configuration(fmt.Errorf("%w: socket %q has %d bytes; a socket path has at most %d, use a shorter directory",
			ErrInvalid, path, len(path), maxSocketPath))
	}
	return nil
}

// socketDirectory makes the directory of a socket, mode 0700, where it is not there yet, and refuses one that other
// users could write or replace: whoever can do that can put a socket of his own in the place of ours. The directory that we make for
// ourselves must be for nobody else at all; one that the user has chosen may be read by others, for they cannot connect to the socket in it.
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
		return configuration(fmt.Errorf("%w: socket directory %s is not a directory", ErrInvalid, dir))
	}
	if err := trusted(dir, info); err != nil {
		return err
	}
	switch mode := info.Mode().Perm(); {
	case mode&0o022 != 0:
		return fmt.Errorf("%w: socket directory %s has mode %#o: others may write it; run chmod go-w on it or choose a directory of your own",
			ErrPermission, dir, mode)
	case mode&0o077 != 0 && dir == privateDirectory():
		return fmt.Errorf("%w: socket directory %s has mode %#o and must have 0700: run chmod 700 on it", ErrPermission, dir, mode)
	}
	return nil
}

// trusted refuses a directory, or a link to one, of another user than this process's and root.
func trusted(dir string, info os.FileInfo) error {
	if uid, ok := ownerOf(info); ok && uid != 0 && uid != uint32(os.Getuid()) {
		return fmt.Errorf("%w: socket directory %s belongs to uid %d, this process runs as uid %d", ErrPermission, dir, uid, os.Getuid())
	}
	return nil
}
