package transfer

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// SlabExport is a result that is sent in slabs, at least in part.
type SlabExport struct {
	Export
	slabs *Slabs
	sent  []sentSlab
}

type sentSlab struct {
	slab  *slab
	first bool // its descriptor goes along
}

// Share makes handles for the storages of a result, which it borrows: those of slabs go by their numbers. It is nil
// where none is of a slab of the session that is not away. The caller closes it when it was sent.
func (p *Slabs) Share(storages []*tensor.Storage) (*SlabExport, error) {
	var out *SlabExport
	for i, storage := range storages {
		handle, sent, ok, err := p.share(storage)
		if !ok && out == nil && err == nil {
			continue
		}
		if out == nil {
			out = &SlabExport{slabs: p}
			for _, before := range storages[:i] { // are of no slab
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
			out.Unsent()
			out.Close()
			return nil, fmt.Errorf("storage %d: %w", i, err)
		}
	}
	return out, nil
}

// share sends the slab of a storage away. handle has its descriptor the first time. ok is false where the storage is of
// no slab, or of one that is away: of that another handle is made, after which it is not used again.
func (p *Slabs) share(storage *tensor.Storage) (handle driver.Handle, sent sentSlab, ok bool, err error) {
	mem, can := storage.Memory().(driver.Slabbed)
	if !can {
		return handle, sent, false, nil
	}
	memory := mem.Slab()
	if memory == nil {
		return handle, sent, false, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.of[memory]
	if s == nil || s.away || s.spent || !s.made || p.closed {
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
	s.away, s.mapped = true, true
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

// Unsent takes back what was shared: the client has not got it.
func (out *SlabExport) Unsent() {
	p := out.slabs
	p.mu.Lock()
	defer p.unlock()
	for _, sent := range out.sent {
		s := sent.slab
		s.away = false
		if sent.first {
			s.mapped = false
		}
		p.settleLocked(s)
	}
	out.sent = nil
}
