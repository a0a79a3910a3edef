package cuda

import (
	"context"

	"github.com/sharedtensor/sharedtensor/driver"
)

var _ driver.Pinner = (*Device)(nil)

// PinHost implements [driver.Pinner] by [Device.PinMemory].
func (d *Device) PinHost(m driver.Mapped) (driver.Pinned, error) {
	h, err := d.PinMemory(m)
	if err != nil {
		return nil, err
	}
	return h, nil
}

// CopyTo implements [driver.Pinned]. It copies in pieces of the size of the staging buffers ([WithStaging]), with the
// stream of each, so that several copies are queued at any time.
func (m *HostMemory) CopyTo(ctx context.Context, dst driver.Memory, n int64, progress func(bytes int64)) error {
	return m.copyAll(ctx, dst, n, true, progress)
}

// CopyFrom implements [driver.Pinned] like CopyTo.
func (m *HostMemory) CopyFrom(ctx context.Context, src driver.Memory, n int64, progress func(bytes int64)) error {
	return m.copyAll(ctx, src, n, false, progress)
}

func (m *HostMemory) copyAll(ctx context.Context, other driver.Memory, n int64, toDevice bool, progress func(bytes int64)) error {
	on, ok := other.(*Memory)
	if !ok {
		return &driver.UnsupportedError{Feature: "a copy of pinned memory", Requires: "memory of package cuda"}
	}
	if n == 0 {
		return nil
	}
	dev := on.dev
	s, err := dev.stages()
	if err != nil {
		return dev.opError("copy pinned memory", err)
	}
	l := load{n: n, piece: dev.options.bufferBytes, progress: progress}
	l.copyPiece = func(b *stage, at, size int64) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := b.stream.copyHost(on, at, m, at, size, toDevice); err != nil {
			return err
		}
		return b.stream.Synchronize()
	}
	return dev.opError("copy pinned memory", l.run(s))
}
