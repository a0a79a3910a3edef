package intercept

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// Callers selects processes by their kernel credentials: those with one of the effective users or groups. Supplementary
// groups do not count.
type Callers struct {
	// UIDs lists user ids and GIDs group ids. If both are empty, no process is selected.
	UIDs, GIDs []uint32
}

// Only restricts the endpoints, or all if none is named, to callers. Other processes get [endpoint.ErrPermission]
// before their arguments are decoded. The server's own process is always permitted. Use it at a server, in addition to
// AllowUIDs, which determines who may connect. At a client it does nothing.
func Only(callers Callers, endpoints ...string) endpoint.Interceptor {
	callers = Callers{UIDs: slices.Clone(callers.UIDs), GIDs: slices.Clone(callers.GIDs)}
	endpoints = slices.Clone(endpoints)
	self := int32(os.Getpid())
	return func(next endpoint.Invoke) endpoint.Invoke {
		return func(ctx context.Context, call *endpoint.Invocation) error {
			p := call.Peer
			concerns := !call.Client && (len(endpoints) == 0 || slices.Contains(endpoints, call.Endpoint))
			if concerns && p.PID != self && !slices.Contains(callers.UIDs, p.UID) && !slices.Contains(callers.GIDs, p.GID) {
				return fmt.Errorf("endpoint %q: %w: it is not for processes of uid %d and gid %d", call.Endpoint, endpoint.ErrPermission, p.UID, p.GID)
			}
			return next(ctx, call)
		}
	}
}
