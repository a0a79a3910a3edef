package inference

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/local"
)

// checkShm returns nil if the client may use shared memory.
func (s *service) checkShm(ctx context.Context) error {
	if !s.shm {
		return fmt.Errorf("%w: shared memory of clients is off: --allow-client-shm turns it on", ErrNotServed)
	}
	if !local.Addr(admission.PeerFrom(ctx)) {
		return fmt.Errorf("%w: shared memory requires a client on this host, over loopback or a Unix socket", ErrNotServed)
	}
	return nil
}

// checkClient returns nil if the client may use the features of the request.
func (s *service) checkClient(ctx context.Context, r *request) error {
	for _, in := range r.inputs {
		if in.region != nil {
			return s.checkShm(ctx)
		}
	}
	for _, w := range r.outputs {
		if w.region != nil {
			return s.checkShm(ctx)
		}
	}
	return nil
}

// registerSystem registers memory that was created with shm_open.
func (s *service) registerSystem(ctx context.Context, name, key string, offset, bytes uint64) error {
	if err := s.checkRegister(ctx, name, bytes); err != nil {
		return err
	}
	memory, err := openSystemRegion(key, offset, bytes)
	if err != nil {
		return fmt.Errorf("shared memory region '%s': %w", name, err)
	}
	return s.regions.add(&region{name: name, key: key, offset: offset, bytes: int64(bytes), memory: memory})
}

// registerCUDA registers memory that was allocated with cudaMalloc.
func (s *service) registerCUDA(ctx context.Context, name string, handle []byte, device int64, bytes uint64) error {
	if err := s.checkRegister(ctx, name, bytes); err != nil {
		return err
	}
	memory, err := openCUDARegion(s.env.Devices, handle, device, bytes)
	if err != nil {
		return fmt.Errorf("shared memory region '%s': %w", name, err)
	}
	return s.regions.add(&region{name: name, cuda: true, device: device, bytes: int64(bytes), memory: memory})
}

func (s *service) checkRegister(ctx context.Context, name string, bytes uint64) error {
	if err := s.checkShm(ctx); err != nil {
		return err
	}
	if err := s.env.CheckWrite(ctx); err != nil {
		return err
	}
	return s.regions.checkNew(name, bytes)
}

// unregister removes a region, or all regions of a kind if name is empty.
func (s *service) unregister(ctx context.Context, name string, cuda bool) error {
	if err := s.checkShm(ctx); err != nil {
		return err
	}
	if err := s.env.CheckWrite(ctx); err != nil {
		return err
	}
	return s.regions.remove(name, cuda)
}

// regionStatus lists the regions of a kind.
func (s *service) regionStatus(ctx context.Context, name string, cuda bool) ([]*region, error) {
	if err := s.checkShm(ctx); err != nil {
		return nil, err
	}
	return s.regions.list(name, cuda)
}
