package transfer

import (
	"os"
	"slices"
	"sync"

	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Sent records which sessions number the memory of a result that may be sent again, such as a cached one. The numbers end
// with the result. The zero value is a result that was never numbered. It is safe for concurrent use.
type Sent struct {
	mu    sync.Mutex
	slabs map[*Slabs]int // number of storages that are numbered
}

// add adds n to the number of storages that a session numbers.
func (r *Sent) add(p *Slabs, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.slabs == nil {
		r.slabs = map[*Slabs]int{}
	}
	if r.slabs[p] += n; r.slabs[p] == 0 {
		delete(r.slabs, p)
	}
}

// End ends the numbers of the result's storages, before they are closed.
func (r *Sent) End(storages []*tensor.Storage) {
	r.mu.Lock()
	list := make([]*Slabs, 0, len(r.slabs))
	for p := range r.slabs {
		list = append(list, p)
	}
	r.mu.Unlock()
	for _, p := range list { // without r.mu, which is locked while p is
		p.end(storages)
	}
}

// AllowRepeats enables numbers for results that may be sent again.
func (p *Slabs) AllowRepeats() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.repeats = true
}

// ShareAgain numbers the memory of a result that may be sent again. It borrows the handles and files of the result. A
// storage gets a number when it is sent for the second time. After the client has confirmed that it keeps the memory
// mapped, the handle has only the number. The message contains the returned handles and files. If the client does not
// receive it, the caller calls MarkUnsent of the loans.
func (p *Slabs) ShareAgain(r *Sent, storages []*tensor.Storage, handles []message.Handle, files []*os.File) ([]message.Handle, []*os.File, Loans) {
	out := Loans{slabs: p}
	if len(files) == 0 {
		return handles, files, out
	}
	p.mu.Lock()
	defer p.unlockAndWake()
	if p.closed || !p.repeats {
		return handles, files, out
	}
	changed := slices.Clone(handles)
	for i, storage := range storages {
		h := &changed[i]
		if h.File < 0 { // memory without a descriptor may end before its number
			continue
		}
		s := p.numberLocked(r, storage)
		if s == nil {
			continue
		}
		h.Storage = s.number
		if s.mapped {
			h.File = -1
		}
		s.busy = true
		s.loans++
		out.sent = append(out.sent, sentSlab{slab: s})
	}
	if len(out.sent) == 0 {
		return handles, files, out
	}
	left := make([]*os.File, 0, len(files))
	for i := range changed {
		if h := &changed[i]; h.File >= 0 {
			left = append(left, files[h.File])
			h.File = int32(len(left) - 1)
		}
	}
	return changed, left, out
}

// numberLocked returns the entry of a storage, or nil if the storage is sent without a number.
func (p *Slabs) numberLocked(r *Sent, storage *tensor.Storage) *slab {
	id := storage.ID()
	if s := p.byStorage[id]; s != nil {
		if s.spent || !s.mapped { // the client has not confirmed the first answer with the number
			return nil
		}
		return s
	}
	at := slices.Index(p.seen, id)
	if at < 0 {
		if len(p.seen) >= MaxMappings {
			p.seen = slices.Delete(p.seen, 0, 1)
		}
		p.seen = append(p.seen, id)
		return nil
	}
	if !p.reserveLocked(storage.Bytes()) {
		return nil
	}
	p.seen = slices.Delete(p.seen, at, at+1)
	p.last++
	s := &slab{mapping: mapping{number: p.last, bytes: storage.Bytes()}, slabs: p, sent: r, storage: id}
	if p.byStorage == nil {
		p.byStorage = map[uint64]*slab{}
	}
	p.byStorage[id] = s
	p.addLocked(s)
	r.add(p, 1)
	return s
}

// forgetLocked ends the number of a storage for further answers.
func (p *Slabs) forgetLocked(s *slab) {
	if p.byStorage[s.storage] == s {
		delete(p.byStorage, s.storage)
		s.sent.add(p, -1)
	}
}

// end ends the numbers of storages that are about to be closed. The client unmaps them when it has processed all answers
// that carry them.
func (p *Slabs) end(storages []*tensor.Storage) {
	p.mu.Lock()
	defer p.unlockAndWake()
	for _, storage := range storages {
		if s := p.byStorage[storage.ID()]; s != nil {
			p.forgetLocked(s)
			s.spent = true
			p.reclaimLocked(s)
		}
	}
}
