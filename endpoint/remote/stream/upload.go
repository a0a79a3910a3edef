package stream

import (
	"fmt"
	"hash/crc32"
	"sync"

	"google.golang.org/grpc/mem"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// upload is a set that is being received: its memory, and the progress of each tensor. One call at a time writes to it.
// A later call with the same id takes over from an earlier one, whose connection may have broken unnoticed.
//
//	open ──> complete ──> handed over (only its outcome is kept)
//	  └────> abandoned (expired, or replaced by newer uploads)
type upload struct {
	description *description
	storage     *tensor.Storage
	eager       bool // the device has allocated all memory, so all of it is charged

	mu       sync.Mutex
	charge   *admission.Charge // its received bytes
	writer   int               // number of the call that may write; 0 if the upload has ended
	writers  int
	progress []progress
	bytes    int64 // received bytes of all tensors
}

// progress describes the received part of a tensor.
type progress struct {
	bytes   int64
	charged int64  // maximum received so far; a restart frees no memory
	crc32c  uint32 // of the received bytes
}

// describedCost is the charged memory for the description of a tensor.
const describedCost = 512

// newUpload allocates the memory for a set. It takes charge, also when it fails. An eager device allocates the memory
// now, so the full size is charged. Other devices allocate it as it is written.
func newUpload(d *description, dev driver.Device, charge *admission.Charge, eager bool) (*upload, error) {
	claimed := int64(len(d.tensors)) * describedCost
	if eager {
		claimed += d.bytes
	}
	if err := charge.Add(claimed); err != nil {
		charge.Close()
		return nil, limitError(err)
	}
	memory, err := dev.Alloc(d.bytes)
	if err != nil {
		charge.Close()
		return nil, err
	}
	return &upload{description: d, storage: tensor.NewStorage(memory), eager: eager, charge: charge, progress: make([]progress, len(d.tensors))}, nil
}

// begin makes the caller the only writer and returns the positions at which to resume.
func (u *upload) begin() (writer int, resume []*streampb.Position, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.writers > 0 && u.writer == 0 {
		return 0, nil, fmt.Errorf("%w: the transfer has ended", ErrInvalid)
	}
	u.writers++
	u.writer = u.writers
	return u.writer, u.positionsLocked(), nil
}

// checksums returns the checksum of each tensor.
func (u *upload) checksums() []uint32 {
	u.mu.Lock()
	defer u.mu.Unlock()
	sums := make([]uint32, len(u.progress))
	for i, p := range u.progress {
		sums[i] = p.crc32c
	}
	return sums
}

// positionsLocked returns the received position of each tensor.
func (u *upload) positionsLocked() (positions []*streampb.Position) {
	for i, p := range u.progress {
		if p.bytes > 0 {
			positions = append(positions, &streampb.Position{Tensor: uint32(i), Offset: uint64(p.bytes), Crc32C: p.crc32c})
		}
	}
	return positions
}

// done returns the number of received bytes.
func (u *upload) done() (bytes int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.bytes
}

// write copies a chunk of a tensor to its place and verifies its checksum. It takes data. A chunk at offset 0 restarts
// the tensor.
func (u *upload) write(writer int, index uint32, chunk *streampb.Chunk, data mem.BufferSlice) error {
	defer data.Free()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.writer != writer {
		return errTakenOver
	}
	if int64(index) >= int64(len(u.progress)) {
		return fmt.Errorf("%w: tensor %d of %d", ErrInvalid, index, len(u.progress))
	}
	one, p := u.description.tensors[index], &u.progress[index]
	if chunk.GetOffset() == 0 {
		u.bytes -= p.bytes
		*p = progress{charged: p.charged}
	}
	n := int64(data.Len())
	if chunk.GetOffset() != uint64(p.bytes) || n > one.bytes-p.bytes {
		return fmt.Errorf("%w: tensor %q: %d bytes at %d, where %d of %d are there", ErrInvalid, one.name, n, chunk.GetOffset(), p.bytes, one.bytes)
	}
	if more := p.bytes + n - p.charged; more > 0 && !u.eager {
		if err := u.charge.Add(more); err != nil {
			return limitError(err)
		}
		p.charged += more
	}
	crc := p.crc32c
	seen := func(piece []byte) { crc = crc32.Update(crc, castagnoli, piece) }
	if err := bulk.Store(u.storage.Memory(), one.spec.ByteOffset+p.bytes, data, seen); err != nil {
		return err
	}
	if crc != chunk.GetCrc32C() {
		return fmt.Errorf("%w: tensor %q at %d: %08x instead of %08x", ErrChecksum, one.name, p.bytes, crc, chunk.GetCrc32C())
	}
	p.bytes, p.crc32c = p.bytes+n, crc
	u.bytes += n
	return nil
}

// errTakenOver ends a call whose transfer a later call continues.
var errTakenOver = fmt.Errorf("%w: another call continues this transfer", ErrInvalid)

// missing returns an error that lists the incomplete tensors, or nil if there are none.
func (u *upload) missing() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, p := range u.progress {
		if one := u.description.tensors[i]; p.bytes < one.bytes {
			return fmt.Errorf("%w: tensor %q has %d of %d bytes", ErrIncomplete, one.name, p.bytes, one.bytes)
		}
	}
	return nil
}

// finish ends a complete upload and returns its tensors, owned by the caller. Only the current writer may call it.
func (u *upload) finish(writer int) (*module.StateDict, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.writer != writer {
		return nil, errTakenOver
	}
	sd, err := u.description.stateDict(u.storage)
	u.closeLocked()
	return sd, err
}

// abandon frees the memory, even if a call is writing.
func (u *upload) abandon() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.writers == 0 || u.writer != 0 {
		u.closeLocked()
	}
}

func (u *upload) closeLocked() {
	u.writers++
	u.writer = 0
	u.storage.Close()
	u.charge.Close()
}
