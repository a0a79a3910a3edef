package cuda

import (
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Comparison is the condition of a wait for a value in memory.
type Comparison uint32

// The comparisons of the value in memory with the given one.
const (
	// AtLeast waits until the difference to the given value, with wrap-around, is not negative.
	AtLeast = Comparison(cu.STREAM_WAIT_VALUE_GEQ)
	// Equal waits until the values are equal.
	Equal = Comparison(cu.STREAM_WAIT_VALUE_EQ)
	// AnyBit waits until a bit of the given value is set in memory.
	AnyBit = Comparison(cu.STREAM_WAIT_VALUE_AND)
	// NotAllBits waits until a bit is set neither in the given value nor in memory. Not every device supports it.
	NotAllBits = Comparison(cu.STREAM_WAIT_VALUE_NOR)
)

// MemOp is a write of, or a wait for, a value in memory, for [Stream.MemOps]. The functions [Write32], [Write64], [Wait32],
// [Wait64] and [MemBarrier] make them.
type MemOp struct {
	mem   *Memory
	off   int64
	bytes int64
	write bool
	op    cu.StreamBatchMemOpType
	value uint64
	flags uint32
}

// Write32 writes value to 4 bytes at off, a multiple of 4, after all earlier work.
func Write32(m *Memory, off int64, value uint32) MemOp {
	return MemOp{mem: m, off: off, bytes: 4, write: true, op: cu.STREAM_MEM_OP_WRITE_VALUE_32, value: uint64(value)}
}

// Write64 writes value to 8 bytes at off, a multiple of 8, after all earlier work.
func Write64(m *Memory, off int64, value uint64) MemOp {
	return MemOp{mem: m, off: off, bytes: 8, write: true, op: cu.STREAM_MEM_OP_WRITE_VALUE_64, value: value}
}

// Wait32 makes later work wait until the 4 bytes at off, a multiple of 4, compare with value.
func Wait32(m *Memory, off int64, c Comparison, value uint32) MemOp {
	return MemOp{mem: m, off: off, bytes: 4, op: cu.STREAM_MEM_OP_WAIT_VALUE_32, value: uint64(value), flags: uint32(c)}
}

// Wait64 makes later work wait until the 8 bytes at off, a multiple of 8, compare with value.
func Wait64(m *Memory, off int64, c Comparison, value uint64) MemOp {
	return MemOp{mem: m, off: off, bytes: 8, op: cu.STREAM_MEM_OP_WAIT_VALUE_64, value: value, flags: uint32(c)}
}

// MemBarrier orders the writes of later operations after earlier ones. It needs CUDA 11.8.
func MemBarrier() MemOp { return MemOp{op: cu.STREAM_MEM_OP_BARRIER} }

// maxMemOps is the driver's limit for one call.
const maxMemOps = 256

// MemOps queues operations on values in memory, at most 256, with one call. It borrows the memory. All operations are
// checked before one is queued. If the writer of a value dies, the stream waits forever. It needs CUDA 11.7.
func (s *Stream) MemOps(ops ...MemOp) error {
	return s.dev.opError("memory operations", s.memOps(ops))
}

func (s *Stream) memOps(ops []MemOp) error {
	if len(ops) == 0 {
		return nil
	}
	if len(ops) > maxMemOps {
		return invalid("%d operations, the driver takes %d", len(ops), maxMemOps)
	}
	params := make([]cu.StreamBatchMemOpParams, len(ops))
	var used []*resource
	for i, o := range ops {
		if err := o.check(); err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
		o.set(&params[i])
		if o.mem != nil {
			used = append(used, &o.mem.resource)
		}
	}
	return s.queue(used, func(c cu.Context) error {
		return check("cuStreamBatchMemOp", c.StreamBatchMemOp(s.handle, uint32(len(params)), &params[0], 0))
	})
}

func (o MemOp) check() error {
	switch {
	case o.op == cu.STREAM_MEM_OP_BARRIER:
		return nil
	case o.mem == nil:
		return invalid("no memory")
	case Comparison(o.flags) > NotAllBits:
		return invalid("comparison %d", o.flags)
	case o.write:
		return errors.Join(o.mem.writableRange(o.off, o.bytes), aligned(o.off, o.bytes))
	}
	return errors.Join(o.mem.inRange(o.off, o.bytes), aligned(o.off, o.bytes))
}

// set fills the driver's record. The records of waits and writes have the same layout.
func (o MemOp) set(p *cu.StreamBatchMemOpParams) {
	if o.mem == nil {
		p.MemoryBarrier().Operation = o.op
		return
	}
	w := p.WaitValue()
	w.Operation, w.Address, w.Flags = o.op, o.mem.ptr+cu.DevicePtr(o.off), o.flags
	*w.Value64() = o.value
}

// WriteValue32 queues a write like [Stream.WriteValue64] to 4 bytes at off, a multiple of 4. It needs CUDA 11.7.
func (s *Stream) WriteValue32(m *Memory, off int64, value uint32) error {
	if err := Write32(m, off, value).check(); err != nil {
		return s.dev.opError("write value", err)
	}
	return s.dev.opError("write value", s.queue([]*resource{&m.resource}, func(c cu.Context) error {
		return check("cuStreamWriteValue32", c.StreamWriteValue32(s.handle, m.ptr+cu.DevicePtr(off), value, 0))
	}))
}

// WaitValue32 queues a wait like [Stream.WaitValue64] for 4 bytes at off, a multiple of 4. It needs CUDA 11.7.
func (s *Stream) WaitValue32(m *Memory, off int64, value uint32) error {
	if err := Wait32(m, off, AtLeast, value).check(); err != nil {
		return s.dev.opError("wait value", err)
	}
	return s.dev.opError("wait value", s.queue([]*resource{&m.resource}, func(c cu.Context) error {
		return check("cuStreamWaitValue32", c.StreamWaitValue32(s.handle, m.ptr+cu.DevicePtr(off), value, cu.STREAM_WAIT_VALUE_GEQ))
	}))
}
