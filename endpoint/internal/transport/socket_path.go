package transport

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/internal/userns"
)

// EnvBasePath is the environment variable with the base path of sockets. It applies if the program sets no base path.
const EnvBasePath = "SHARED_TENSOR_BASE_PATH"

// EnvClaimDirectory is the environment variable with a directory that the DRA driver for NVIDIA GPUs mounts into every
// container of a GPU claim.
const EnvClaimDirectory = "NVIDIA_DRA_LOCAL_IPC_DIR"

// maxSocketPath is the size of sockaddr_un.sun_path without the final zero byte (unix(7)).
const maxSocketPath = 107

// maxClaimBase limits the base path in a claim's directory. It leaves room for the suffix -N.sock.keep with a device index of
// 10 digits, so that the index does not change the directory.
const maxClaimBase = maxSocketPath - len("-4294967295.sock.keep")

// SocketPath returns the path of an owner's socket: base, a dash, the device index, ".sock". An empty base means the
// value of [EnvBasePath], then DIR/shared-tensor-UID/shared-tensor in the directory of [EnvClaimDirectory] if this process can
// use it, then $XDG_RUNTIME_DIR/shared-tensor, then /tmp/shared-tensor-UID/shared-tensor. It fails with [ErrConfiguration].
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

// DefaultBase returns the base path that applies if the program sets none.
func DefaultBase() string {
	if base := os.Getenv(EnvBasePath); base != "" {
		return base
	}
	if dir := claimDirectory(); dir != "" {
		return dir + "/shared-tensor"
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "shared-tensor")
	}
	return filepath.Join(privateDirectory(), "shared-tensor")
}

// claimDirectory returns this user's private directory in the directory of [EnvClaimDirectory], or "" if that variable is
// empty or names no usable directory. A usable directory
//   - has an absolute path, is no link, and leaves room for the names of sockets;
//   - belongs to root or to the effective user;
//   - does not let other users replace entries: only its owner may write it, or it is sticky, as the driver creates it;
//   - lets this process create entries.
func claimDirectory() string {
	dir := strings.TrimRight(os.Getenv(EnvClaimDirectory), "/") // with a slash, Lstat would follow a link
	if !filepath.IsAbs(dir) {
		return ""
	}
	private := dir + "/" + privateName()
	info, err := os.Lstat(dir)
	switch {
	case len(private+"/shared-tensor") > maxClaimBase, err != nil, !info.IsDir(), trusted(dir, info) != nil:
		return ""
	case info.Mode().Perm()&0o022 != 0 && info.Mode()&os.ModeSticky == 0, !writable(dir):
		return ""
	}
	return private
}

// SharedDirectory contains the private directories of all users. Tests change it.
var SharedDirectory = "/tmp"

// privateDirectory returns the directory for sockets of users without XDG_RUNTIME_DIR. Other users may have created it
// first; see socketDirectory. TMPDIR does not apply, because an owner and its clients often have different ones. UID is the
// effective user, as the kernel reports it to the peer.
func privateDirectory() string {
	return filepath.Join(SharedDirectory, privateName())
}

// privateName is the name of this user's directory in a directory of all users.
func privateName() string { return "shared-tensor-" + strconv.Itoa(os.Geteuid()) }

// CheckSocketPath rejects a path that the kernel would truncate or treat as an abstract name.
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

// socketDirectory creates the directory of a socket with mode 0700 if it does not exist. It rejects a directory that
// other users can write or replace, because they could replace the socket. The private directory must be inaccessible
// to other users. A directory chosen by the user may be readable, because that does not allow others to connect.
func socketDirectory(path string) error {
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("socket directory: %w", err)
	}
	info, err := os.Lstat(dir)
	if err == nil && info.Mode()&os.ModeSymlink != 0 { // the owner of a link controls its target
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
	case mode&0o022 != 0 && info.Mode()&os.ModeSticky != 0: // such as /tmp, which must stay as it is
		return fmt.Errorf("%w: every user may create files in the socket directory %s: make a directory of your own in it with mode 0700",
			status.ErrPermission, dir)
	case mode&0o022 != 0:
		return fmt.Errorf("%w: socket directory %s has mode %#o: others may write it; run chmod go-w on it or choose a directory of your own",
			status.ErrPermission, dir, mode)
	case mode&0o077 != 0 && (dir == privateDirectory() || claimDirectory() != "" && dir == filepath.Clean(claimDirectory())):
		return fmt.Errorf("%w: socket directory %s has mode %#o and must have 0700: run chmod 700 on it", status.ErrPermission, dir, mode)
	}
	return nil
}

// trusted rejects a directory, or a link to one, unless its owner is root or the user of this process.
func trusted(dir string, info os.FileInfo) error {
	if uid, ok := ownerOf(info); ok && uid != 0 && !userns.Self(uid) {
		return fmt.Errorf("%w: socket directory %s belongs to uid %d, this process runs as uid %d%s",
			status.ErrPermission, dir, uid, os.Geteuid(), userns.Cause(uid))
	}
	return nil
}

// Permissions say which users the kernel lets connect to a socket. The server checks the credentials of each client in any
// case.
type Permissions struct {
	// Mode is the mode of the socket file; 0 means 0600.
	Mode os.FileMode
	// Group is the group of the socket file if Grouped is set. If this process may not set it, everyone can connect.
	Group   uint32
	Grouped bool
}

// FileID identifies a file of this host during its lifetime.
type FileID struct{ device, inode uint64 }

// HandedOver returns a socket that another process, such as systemd, has bound. It takes ownership of the listener.
func HandedOver(path string, l *net.UnixListener) *Socket { return &Socket{path: path, listener: l} }
