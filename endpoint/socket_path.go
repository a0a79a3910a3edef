package endpoint

import "github.com/sharedtensor/sharedtensor/endpoint/internal/transport"

// SocketPath returns the path of an owner's socket: base, a dash, the device index, ".sock". If base is empty, it is
// the value of SHARED_TENSOR_BASE_PATH, else $XDG_RUNTIME_DIR/shared-tensor, else /tmp/shared-tensor-UID/shared-tensor. It fails
// with [ErrConfiguration].
func SocketPath(base string, index int) (string, error) { return transport.SocketPath(base, index) }
