package endpoint

import "github.com/sharedtensor/sharedtensor/endpoint/internal/unixsock"

// EnvBasePath is the environment variable that sets the base path of sockets where the program itself names none.
const EnvBasePath = unixsock.EnvBasePath

// SocketPath is where an owner listens: base, a dash, the device index, ".sock". An empty base stands for the value of
// [EnvBasePath], else $XDG_RUNTIME_DIR/shared-tensor, else /tmp/shared-tensor-UID/shared-tensor. An explicit base
// goes before the environment. Errors are [ErrConfiguration].
func SocketPath(base string, index int) (string, error) { return unixsock.SocketPath(base, index) }
