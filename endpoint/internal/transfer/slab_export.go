package transfer

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// SlabExport is an exported result with at least one storage in a slab.
type SlabExport struct {
	Export
	Loans
}

// Loans are the numbers in one answer.
type Loans struct {
	slabs *Slabs
	sent  []sentSlab
}

type sentSlab struct {
	slab  *slab
	first bool // sent with its descriptor
}

// Share creates handles for the storages of a result, which it borrows. Storages in slabs are sent by slab number. It
// returns nil if no storage is in a slab of the session that can be lent. The caller closes the export after sending
// it.
func (p *Slabs) Share(storages []*tensor.Storage) (*SlabExport, error) {
	var out *SlabExport
	for i, storage := range storages {
		handle, sent, ok, err := p.share(storage)
		if !ok && out == nil && err == nil {
			continue
		}
		if out == nil {
			out = &SlabExport{Loans: Loans{slabs: p}}
			for _, before := range storages[:i] { // none is in a slab
				if err == nil {
					err = out.add(before)
				}
			}
		}
		switch {
		case err != nil:
		case ok:
			out.sent = append(out.sent, sent)
			out.addSlab(handle, storage.Bytes(), sent)
		default:
			err = out.add(storage)
		}
		if err != nil {
			out.MarkUnsent()
			out.Close()
			return nil, fmt.Errorf("storage %d: %w", i, err)
		}
	}
	return out, nil
}

// share lends the slab of a storage. handle has a descriptor if the client has not mapped the slab. ok is false if the
// storage is not in a slab, or the slab is lent already. In that case the caller exports the memory, and the slab is
// not reused.
func (p *Slabs) share(storage *tensor.Storage) (handle driver.Handle, sent sentSlab, ok bool, err error) {
	slabber, can := storage.Memory().Device().(driver.Slabber)
	if !can {
		return handle, sent, false, nil
	}
	memory := slabber.SlabOf(storage.Memory())
	if memory == nil {
		return handle, sent, false, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.byMemory[memory]
	if s == nil || s.loans > 0 || s.spent || !s.inUse || p.closed {
		return handle, sent, false, nil
	}
	handle = s.handle
	if !s.mapped {
		if handle, err = memory.Export(); err != nil {
			return handle, sent, false, status.Unshareable(err)
		}
		s.handle = handle
		s.handle.File = nil
	}
	sent = sentSlab{slab: s, first: !s.mapped}
	s.loans, s.mapped, s.seen = 1, true, true
	return handle, sent, true, nil
}

// addSlab adds the handle of a slab.
func (out *SlabExport) addSlab(h driver.Handle, bytes int64, sent sentSlab) {
	file := int32(-1)
	if h.File != nil {
		file = int32(len(out.Files))
		out.Files = append(out.Files, h.File)
	}
	handle := handleOf(h, file)
	handle.Bytes, handle.Slab = uint64(bytes), sent.slab.number
	if sent.first {
		handle.SlabBytes = uint64(h.Bytes)
	}
	out.Handles = append(out.Handles, handle)
}

// MarkUnsent undoes the loans because the client did not receive the result.
func (out *Loans) MarkUnsent() {
	if len(out.sent) == 0 {
		return
	}
	p := out.slabs
	p.mu.Lock()
	defer p.unlockAndWake()
	for _, sent := range out.sent {
		s := sent.slab
		s.loans = max(s.loans-1, 0) // 0 after the end of the session
		if sent.first {
			s.mapped = false
		}
		s.seen, s.unsent = false, true
		s.spent = s.spent || s.sent != nil && !s.mapped
		p.reclaimLocked(s)
	}
	out.sent = nil
}
