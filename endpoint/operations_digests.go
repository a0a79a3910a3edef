package endpoint

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// doDigests answers when the digests of a version are computed. The version is held only until it is found: waiting for
// digests keeps no memory.
func doDigests(ctx context.Context, r request) (reply, error) {
	var in message.Digests
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	catalog := r.session.server.catalog
	lease, err := catalog.Acquire(in.Name, in.Version, r.session.holder())
	if err != nil {
		return reply{}, r.session.server.loads.absent(in.Name, status.Absent(err))
	}
	job := r.session.server.digests.job(lease.StateDict())
	_ = catalog.Release(lease.ID, r.session.id) // it was taken above
	if job == nil {
		return reply{}, fmt.Errorf("%w: version %d has no digests of the owner, because they were not asked for when it was published",
			status.ErrNotFound, lease.Version)
	}
	if err := job.wait(ctx); err != nil {
		return reply{}, err
	}
	return reply{body: message.Digested{Version: lease.Version, Whole: job.whole[:], Tensors: job.tensors}}, nil
}
