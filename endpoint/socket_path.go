package endpoint

import "github.com/sharedtensor/sharedtensor/endpoint/internal/unixsock"

// EnvBasePath is the environment variable for the base path of sockets. A path set by the program takes precedence.
const EnvBasePath = unixsock.EnvBasePath

// SocketPath returns the path of an owner's socket: base, a dash, the device index, ".sock". If base is empty, it is
// the value of [EnvBasePath], else $XDG_RUNTIME_DIR/shared-tensor, else /tmp/shared-tensor-UID/shared-tensor. It fails
// with [ErrConfiguration].
func SocketPath(base string, index int) (string, error) { return unixsock.SocketPath(base, index) }
