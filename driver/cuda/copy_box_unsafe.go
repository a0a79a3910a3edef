package cuda

import (
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Operand is one side of a copy: device memory or pinned memory, from an offset in bytes. Exactly one of Memory and Host
// is set.
type Operand struct {
	// Memory is the device memory.
	Memory *Memory
	// Host is the pinned memory.
	Host *HostMemory
	// Offset is in bytes.
	Offset int64
}

// Box is one side of a copy of a box of bytes: rows in planes.
type Box struct {
	Operand
	// RowPitch is the distance in bytes between the beginnings of rows. 0 means the width of the copy.
	RowPitch int64
	// PlaneRows is the distance in rows between the beginnings of planes. 0 means the height of the copy.
	PlaneRows int64
}

// BoxCopy is a copy of Depth planes of Height rows of Width bytes.
type BoxCopy struct {
	// Dst and Src are the two sides. They must not overlap.
	Dst, Src Box
	// Width is in bytes, Height in rows, Depth in planes. 0 planes count as 1.
	Width, Height, Depth int64
}

// CopyBox queues the copy of a box. It borrows the memory of both sides, checks that they contain the box, and fails
// with [driver.ErrRange] if not. Pinned memory must not change before the copy is done.
func (s *Stream) CopyBox(c BoxCopy) error { return s.dev.opError("copy box", s.copyBox(c)) }

func (s *Stream) copyBox(b BoxCopy) error {
	p, used, err := b.params()
	if err != nil || p == nil {
		return err
	}
	return s.queue(used, func(c cu.Context) error {
		if err := b.reach(s.dev); err != nil {
			return err
		}
		return check("cuMemcpy3DAsync", c.Memcpy3DAsync(p, s.handle))
	})
}

// params checks the copy and returns it in the driver's form, and the memory that it uses. It returns nil for an empty
// box.
func (c *BoxCopy) params() (*cu.MEMCPY3D, []*resource, error) {
	c.Depth = max(c.Depth, 1)
	if c.Width < 0 || c.Height < 0 {
		return nil, nil, invalid("a box of %d rows of %d bytes", c.Height, c.Width)
	}
	if c.Width == 0 || c.Height == 0 {
		return nil, nil, nil
	}
	p := &cu.MEMCPY3D{WidthInBytes: uint64(c.Width), Height: uint64(c.Height), Depth: uint64(c.Depth)}
	dst, err := c.Dst.resolve(c, true)
	if err != nil {
		return nil, nil, fmt.Errorf("destination: %w", err)
	}
	src, err := c.Src.resolve(c, false)
	if err != nil {
		return nil, nil, fmt.Errorf("source: %w", err)
	}
	p.DstMemoryType, p.DstDevice, p.DstHost, p.DstPitch, p.DstHeight = dst.kind, dst.device, dst.host, dst.pitch, dst.rows
	p.SrcMemoryType, p.SrcDevice, p.SrcHost, p.SrcPitch, p.SrcHeight = src.kind, src.device, src.host, src.pitch, src.rows
	return p, []*resource{dst.used, src.used}, nil
}

// reach gives the device access to the device memory of the copy.
func (c *BoxCopy) reach(d *Device) error { return reachAll(d, c.Dst.Memory, c.Src.Memory) }

func reachAll(d *Device, memory ...*Memory) error {
	for _, m := range memory {
		if m == nil {
			continue
		}
		if err := m.reachFrom(d); err != nil {
			return err
		}
	}
	return nil
}

// side is a side of a copy in the form that the driver takes.
type side struct {
	kind        cu.Memorytype
	device      cu.DevicePtr
	host        unsafe.Pointer
	pitch, rows uint64
	used        *resource
}

// resolve checks that the operand contains n bytes at its offset.
func (o Operand) resolve(n int64, write bool) (side, error) {
	switch {
	case o.Memory != nil && o.Host != nil, o.Memory == nil && o.Host == nil:
		return side{}, invalid("either device memory or pinned memory must be set")
	case o.Memory != nil:
		in := o.Memory.inRange
		if write {
			in = o.Memory.writableRange
		}
		err := in(o.Offset, n)
		return side{kind: cu.MEMORYTYPE_DEVICE, device: o.Memory.ptr + cu.DevicePtr(o.Offset), used: &o.Memory.resource}, err
	}
	if o.Host.readOnly && write {
		return side{}, driver.ErrReadOnly
	}
	data, err := o.Host.hostRange(o.Offset, n)
	return side{kind: cu.MEMORYTYPE_HOST, host: unsafe.Pointer(unsafe.SliceData(data)), used: &o.Host.resource}, err
}

func (b Box) resolve(c *BoxCopy, write bool) (side, error) {
	if b.RowPitch == 0 {
		b.RowPitch = c.Width
	}
	if b.PlaneRows == 0 {
		b.PlaneRows = c.Height
	}
	if b.RowPitch < c.Width || b.PlaneRows < c.Height {
		return side{}, invalid("rows of %d bytes at a pitch of %d, %d of %d rows in a plane", c.Width, b.RowPitch, c.Height, b.PlaneRows)
	}
	n, ok := extent(c, b)
	if !ok {
		return side{}, fmt.Errorf("%w: a box of %d x %d x %d bytes", driver.ErrRange, c.Width, c.Height, c.Depth)
	}
	s, err := b.Operand.resolve(n, write)
	s.pitch, s.rows = uint64(b.RowPitch), uint64(b.PlaneRows)
	return s, err
}

// extent returns the bytes from the first to the last byte of the box. ok is false if the number overflows.
func extent(c *BoxCopy, b Box) (n int64, ok bool) {
	hi, rows := bits.Mul64(uint64(c.Depth-1), uint64(b.PlaneRows))
	rows, carry := bits.Add64(rows, uint64(c.Height-1), 0)
	over, last := bits.Mul64(rows, uint64(b.RowPitch))
	end, carry2 := bits.Add64(last, uint64(c.Width), 0)
	return int64(end), hi|carry|over|carry2 == 0 && int64(end) >= 0
}

// Copy is one copy of a batch.
type Copy struct {
	// Dst and Src are the two sides. They must not overlap.
	Dst, Src Operand
	// Bytes is the size of the copy.
	Bytes int64
}

// CopyBatch queues all copies as one operation. They run in any order, also at the same time, so they must not depend on
// each other. CopyBatch borrows the memory, checks all ranges, and queues nothing if one is invalid. Pinned memory must
// not change before the copies are done. It needs CUDA 12.8; the stream must not be the default stream.
func (s *Stream) CopyBatch(copies []Copy) error {
	return s.dev.opError("copy batch", s.copyBatch(copies))
}

func (s *Stream) copyBatch(copies []Copy) error {
	var dsts, srcs []cu.DevicePtr
	var sizes []uint64
	var used []*resource
	for i, c := range copies {
		if c.Bytes == 0 {
			continue
		}
		dst, err := c.Dst.resolve(c.Bytes, true)
		if err != nil {
			return fmt.Errorf("copy %d, destination: %w", i, err)
		}
		src, err := c.Src.resolve(c.Bytes, false)
		if err != nil {
			return fmt.Errorf("copy %d, source: %w", i, err)
		}
		dsts, srcs, sizes = append(dsts, dst.address()), append(srcs, src.address()), append(sizes, uint64(c.Bytes))
		used = append(used, dst.used, src.used)
	}
	if len(sizes) == 0 {
		return nil
	}
	return s.queue(used, func(c cu.Context) error {
		for _, b := range copies {
			if err := reachAll(s.dev, b.Dst.Memory, b.Src.Memory); err != nil {
				return err
			}
		}
		return queueBatch(c, dsts, srcs, sizes, s.handle)
	})
}

// address returns the address of either side: host memory has one address for host and device.
func (s side) address() cu.DevicePtr {
	if s.host != nil {
		return cu.DevicePtr(uintptr(s.host))
	}
	return s.device
}

// queueBatch calls the form of the function that the driver has: CUDA 13.0 dropped a parameter.
func queueBatch(c cu.Context, dsts, srcs []cu.DevicePtr, sizes []uint64, h cu.Stream) error {
	attrs := cu.MemcpyAttributes{SrcAccessOrder: cu.MEMCPY_SRC_ACCESS_ORDER_STREAM}
	var first, failed uint64
	n := uint64(len(sizes))
	r := c.MemcpyBatchAsync(&dsts[0], &srcs[0], &sizes[0], n, &attrs, &first, 1, h)
	if r.Missing() {
		r = c.MemcpyBatchAsync_v1(&dsts[0], &srcs[0], &sizes[0], n, &attrs, &first, 1, &failed, h)
	}
	return check("cuMemcpyBatchAsync", r)
}
