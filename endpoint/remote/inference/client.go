package inference

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/local"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
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

// checkClient returns nil if the client may use the features of the request. Regions belong to all clients with the right
// to register them.
func (s *service) checkClient(ctx context.Context, r *request) error {
	uses := false
	for _, in := range r.inputs {
		uses = uses || in.region != nil
	}
	for _, w := range r.outputs {
		uses = uses || w.region != nil
	}
	if !uses {
		return nil
	}
	return s.checkRegions(ctx)
}

// checkRegions returns nil if the client may register and use shared memory.
func (s *service) checkRegions(ctx context.Context) error {
	if err := s.checkShm(ctx); err != nil {
		return err
	}
	return s.env.AllowControl(ctx)
}

// regionOf returns the name of a region of the sender of a request.
func regionOf(ctx context.Context, name string) regionName {
	return regionName{rights.Sender(ctx).Key(), name}
}

// registerSystem registers memory that was created with shm_open.
func (s *service) registerSystem(ctx context.Context, name, key string, offset, bytes uint64) error {
	if err := s.checkRegister(ctx, name, bytes); err != nil {
		return err
	}
	uid, err := admission.UserOf(ctx)
	if err != nil {
		return fmt.Errorf("%w: shared memory region '%s': the user of the client must own its memory: %w", ErrInvalid, name, err)
	}
	memory, err := openSystemRegion(key, uid, offset, bytes)
	if err != nil {
		return fmt.Errorf("shared memory region '%s': %w", name, err)
	}
	return s.addRegion(ctx, &region{regionName: regionOf(ctx, name), key: key, offset: offset, bytes: int64(bytes), memory: memory})
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
	return s.addRegion(ctx, &region{regionName: regionOf(ctx, name), cuda: true, device: device, bytes: int64(bytes), memory: memory})
}

func (s *service) addRegion(ctx context.Context, r *region) error {
	err := s.regions.add(r)
	if err == nil {
		s.env.Audited(ctx, gateway.ChangeRegister, "region", r.name, "bytes", r.bytes)
	}
	return err
}

func (s *service) checkRegister(ctx context.Context, name string, bytes uint64) error {
	if err := s.checkRegions(ctx); err != nil {
		return err
	}
	return s.regions.checkNew(regionOf(ctx, name), bytes)
}

// unregister removes a region, or all regions of a kind if name is empty.
func (s *service) unregister(ctx context.Context, name string, cuda bool) error {
	if err := s.checkRegions(ctx); err != nil {
		return err
	}
	err := s.regions.remove(regionOf(ctx, name), cuda)
	if err == nil {
		s.env.Audited(ctx, gateway.ChangeUnregister, "region", name)
	}
	return err
}

// regionStatus lists the regions of a kind.
func (s *service) regionStatus(ctx context.Context, name string, cuda bool) ([]*region, error) {
	if err := s.checkRegions(ctx); err != nil {
		return nil, err
	}
	return s.regions.list(regionOf(ctx, name), cuda)
}
