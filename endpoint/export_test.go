package endpoint

import (
	"context"
	"sync"

	"github.com/sharedtensor/sharedtensor/module"
)

// HoldDigests makes a server that has not published yet hold the computation of digests until release is called, or
// they are no longer wanted. begun receives one value for each version whose computation has begun.
func HoldDigests(s *Server) (begun <-chan struct{}, release func()) {
	began, held, digest := make(chan struct{}, 16), make(chan struct{}), s.core.Models.Digest
	s.core.Models.Digest = func(ctx context.Context, sd *module.StateDict, workers int) (map[string]module.Digest, error) {
		began <- struct{}{}
		select {
		case <-held:
		case <-ctx.Done():
		}
		return digest(ctx, sd, workers)
	}
	return began, sync.OnceFunc(func() { close(held) })
}
