package cuda

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// hostRange returns n bytes of pinned memory at off.
func (m *HostMemory) hostRange(off, n int64) ([]byte, error) {
	if off < 0 || n < 0 || off > int64(len(m.data)) || n > int64(len(m.data))-off {
		return nil, fmt.Errorf("%w: %d bytes at %d in %d of pinned memory", driver.ErrRange, n, off, len(m.data))
	}
	return m.data[off : off+n], nil
}

// CopyToDevice queues a copy of n bytes of pinned memory at srcOff to device memory at dstOff. It borrows both. The
// caller must not change src before the copy is done.
func (s *Stream) CopyToDevice(dst *Memory, dstOff int64, src *HostMemory, srcOff, n int64) error {
	return s.dev.opError("copy to device", s.copyHost(dst, dstOff, src, srcOff, n, true))
}

// CopyToHost queues a copy of n bytes of device memory at srcOff to pinned memory at dstOff. It borrows both. The bytes
// are in dst once the stream has executed the copy.
func (s *Stream) CopyToHost(dst *HostMemory, dstOff int64, src *Memory, srcOff, n int64) error {
	return s.dev.opError("copy to host", s.copyHost(src, srcOff, dst, dstOff, n, false))
}

func (s *Stream) copyHost(m *Memory, off int64, h *HostMemory, hostOff, n int64, toDevice bool) error {
	check := m.inRange
	if toDevice {
		check = m.writableRange
	}
	if err := check(off, n); err != nil {
		return err
	}
	if h.readOnly && !toDevice {
		return driver.ErrReadOnly
	}
	buf, err := h.hostRange(hostOff, n)
	if err != nil || n == 0 {
		return err
	}
	return s.queue([]*resource{&m.resource, &h.resource}, func(c cu.Context) error {
		if toDevice {
			return queueToDevice(c, m.ptr+cu.DevicePtr(off), buf, s.handle)
		}
		return queueFromDevice(c, buf, m.ptr+cu.DevicePtr(off), s.handle)
	})
}

// CopyOnDevice queues a copy of n bytes between device memory, also memory of another device. It borrows both. The
// stream's device gets access to the other device's memory if it needs that, and CopyOnDevice returns a
// [driver.UnsupportedError] if that is not possible. The two ranges must not overlap.
func (s *Stream) CopyOnDevice(dst *Memory, dstOff int64, src *Memory, srcOff, n int64) error {
	return s.dev.opError("copy on device", s.copyOnDevice(dst, dstOff, src, srcOff, n))
}

func (s *Stream) copyOnDevice(dst *Memory, dstOff int64, src *Memory, srcOff, n int64) error {
	if err := dst.checkCopy(dstOff, src, srcOff, n); err != nil {
		return err
	}
	return s.queue([]*resource{&dst.resource, &src.resource}, func(c cu.Context) error {
		if n == 0 {
			return nil
		}
		for _, m := range []*Memory{dst, src} {
			if err := m.reachFrom(s.dev); err != nil {
				return err
			}
		}
		return check("cuMemcpyDtoDAsync",
			c.MemcpyDtoDAsync(dst.ptr+cu.DevicePtr(dstOff), src.ptr+cu.DevicePtr(srcOff), uint64(n), s.handle))
	})
}

// Fill8 queues an operation that sets n bytes at off to value.
func (s *Stream) Fill8(m *Memory, off, n int64, value uint8) error {
	return s.fill(m, off, n, 1, func(c cu.Context, p cu.DevicePtr, n uint64) error {
		return check("cuMemsetD8Async", c.MemsetD8Async(p, value, n, s.handle))
	})
}

// Fill16 queues an operation that sets n values of 2 bytes at off, which must be a multiple of 2.
func (s *Stream) Fill16(m *Memory, off, n int64, value uint16) error {
	return s.fill(m, off, n, 2, func(c cu.Context, p cu.DevicePtr, n uint64) error {
		return check("cuMemsetD16Async", c.MemsetD16Async(p, value, n, s.handle))
	})
}

// Fill32 queues an operation that sets n values of 4 bytes at off, which must be a multiple of 4.
func (s *Stream) Fill32(m *Memory, off, n int64, value uint32) error {
	return s.fill(m, off, n, 4, func(c cu.Context, p cu.DevicePtr, n uint64) error {
		return check("cuMemsetD32Async", c.MemsetD32Async(p, value, n, s.handle))
	})
}

func (s *Stream) fill(m *Memory, off, n, width int64, queue func(c cu.Context, p cu.DevicePtr, n uint64) error) error {
	if err := m.fillRange(off, n, width); err != nil {
		return s.dev.opError("fill", err)
	}
	return s.dev.opError("fill", s.queue([]*resource{&m.resource}, func(c cu.Context) error {
		if n == 0 {
			return nil
		}
		return queue(c, m.ptr+cu.DevicePtr(off), uint64(n))
	}))
}

// fillRange checks that n values of width bytes at off can be written.
func (m *Memory) fillRange(off, n, width int64) error {
	if n > m.bytes/width {
		return fmt.Errorf("%w: %d times %d bytes in %d", driver.ErrRange, n, width, m.bytes)
	}
	if err := m.writableRange(off, n*width); err != nil {
		return err
	}
	return aligned(off, width)
}
