package intercept

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// Callers are processes, by what the kernel says of them: those of one of the users, or with one of the groups as their
// effective one. Supplementary groups do not count.
type Callers struct {
	// UIDs are the users, GIDs the groups. Nobody is meant where both are empty.
	UIDs, GIDs []uint32
}

// Only lets no other callers than those call the endpoints, or any where none is named; others get
// [endpoint.ErrPermission], and nothing of their arguments is looked at. The server's own process may always. It is for
// a server, whose AllowUIDs say who may connect at all; at a client it does nothing.
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
