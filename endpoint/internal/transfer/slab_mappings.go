package transfer

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// returnTime is the time for which slabs wait for a call that can return them before they are returned in a separate
// message.
const returnTime = 20 * time.Millisecond

// SlabMappings holds the numbered memory of an owner's results that a client has mapped, for one connection: slabs, which
// the owner reuses, and memory that it may send again. It validates everything that the owner sends. The zero value
// accepts no numbers. It is safe for concurrent use.
type SlabMappings struct {
	mu          sync.Mutex
	on          bool
	repeats     bool // the owner may number memory that it sends again
	byNumber    map[uint64]*slabMapping
	back        SlabReturns
	sendReturns func()      // returns slabs that have waited for returnTime
	timer       *time.Timer // created on first use
	armed       bool
	closed      bool

	// Read by each call without the lock.
	ended   atomic.Bool  // closed
	waiting atomic.Bool  // back is not empty
	calls   atomic.Int64 // calls whose answers may be in slabs and were not yet processed
}

// slabMapping is the mapping of one slab, or memory that the owner may send again.
type slabMapping struct {
	memory  driver.Slab     // nil for a storage
	storage *tensor.Storage // a separate reference; nil for a slab
	used    bool            // this process uses memory in the slab
	gone    bool            // the owner will not reuse it
}

func (s *slabMapping) bytes() int64 {
	if s.storage != nil {
		return s.storage.Bytes()
	}
	return s.memory.Bytes()
}

// unmap unmaps a slab, or a storage when its last user closes it.
func (s *slabMapping) unmap() {
	if s.storage != nil {
		_ = s.storage.Close() // best effort
		return
	}
	_ = s.memory.Close() // best effort
}

// unmapLocked unmaps the unused slabs.
func (m *SlabMappings) unmapLocked() {
	for number, s := range m.byNumber {
		if !s.used {
			delete(m.byNumber, number)
			s.unmap()
		}
	}
}

// SlabReturns are the slabs to return to the owner.
type SlabReturns struct {
	// Returned are the slabs that the owner may reuse. Dropped are the slabs that it must not reuse.
	Returned, Dropped []uint64
}

// Empty reports whether there is nothing to return.
func (r SlabReturns) Empty() bool { return len(r.Returned) == 0 && len(r.Dropped) == 0 }

// Allow enables slabs, and numbers of memory that is sent again if repeats is true. sendReturns is called on a separate
// goroutine when slabs have waited for returnTime. It calls TakeReturns.
func (m *SlabMappings) Allow(sendReturns func(), repeats bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.on, m.sendReturns, m.repeats = true, sendReturns, repeats
}

// BeginCall is called before a call whose answer may be in a slab. Mappings are kept until EndCall, even if the
// connection ends.
func (m *SlabMappings) BeginCall() { m.calls.Add(1) }

// EndCall undoes BeginCall after the answer was processed, or when there will be none.
func (m *SlabMappings) EndCall() {
	if m.calls.Add(-1) > 0 || !m.ended.Load() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unmapLocked()
}

// Storage maps the slab of a handle, or finds its mapping. It takes the descriptor from the files if there is one. It
// returns [status.ErrProtocol] if the handle is invalid, and the errors of the device.
func (m *SlabMappings) Storage(devices Devices, h message.Handle, files *wire.Files) (*tensor.Storage, error) {
	s, err := m.mapping(devices, h, files)
	if err != nil {
		m.Refuse([]message.Handle{h})
		return nil, err
	}
	number := h.Slab
	mem, err := s.memory.Use(int64(h.Bytes), func(clean bool) { m.useEnded(number, s, clean) })
	if err != nil {
		m.useEnded(number, s, false)
		return nil, err
	}
	return tensor.NewLentStorage(mem, ""), nil
}

// mapping returns the mapping of a slab and marks it as used.
func (m *SlabMappings) mapping(devices Devices, h message.Handle, files *wire.Files) (*slabMapping, error) {
	if h.File >= 0 {
		return m.newMapping(devices, h, files)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.byNumber[h.Slab]
	switch {
	case s == nil || s.memory == nil || s.used || s.gone:
		return nil, fmt.Errorf("%w: the owner reuses slab %d, which this client has not returned", status.ErrProtocol, h.Slab)
	case h.Bytes > uint64(s.memory.Bytes()) || h.SlabBytes != 0:
		return nil, fmt.Errorf("%w: %d bytes of slab %d, which has %d", status.ErrProtocol, h.Bytes, h.Slab, s.memory.Bytes())
	}
	s.used = true
	return s, nil
}

// newMapping maps a slab that was sent with its descriptor.
func (m *SlabMappings) newMapping(devices Devices, h message.Handle, files *wire.Files) (*slabMapping, error) {
	dev, err := devices.Find(driver.UUID(h.Device))
	if err != nil {
		return nil, err
	}
	slabber, can := dev.(driver.Slabber)
	if !can || h.SlabBytes < h.Bytes {
		return nil, fmt.Errorf("%w: slab %d of %d bytes", status.ErrProtocol, h.Slab, h.SlabBytes)
	}
	handle := driver.Handle{
		Kind: driver.HandleKind(h.Kind), Device: driver.UUID(h.Device), Bytes: int64(h.SlabBytes), Offset: int64(h.Offset),
		File: files.Take(int(h.File)),
	}
	defer handle.Close()
	memory, err := slabber.ImportSlab(handle)
	if err != nil {
		return nil, status.Unshareable(err)
	}
	s := &slabMapping{memory: memory, used: true}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byNumber[h.Slab] != nil {
		_ = memory.Close() // best effort: another error is returned
		return nil, fmt.Errorf("%w: the owner sent a second descriptor for slab %d", status.ErrProtocol, h.Slab)
	}
	if m.byNumber == nil {
		m.byNumber = map[uint64]*slabMapping{}
	}
	m.byNumber[h.Slab] = s
	return s, nil
}

// useEnded marks a slab as unused. If clean is false, its memory may still be referenced, so the slab must not be
// reused.
func (m *SlabMappings) useEnded(number uint64, s *slabMapping, clean bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.used = false
	if clean && !s.gone && !m.closed {
		m.back.Returned = append(m.back.Returned, number)
		m.armLocked()
		return
	}
	s.unmap()
	if m.byNumber[number] == s {
		delete(m.byNumber, number)
	}
	if !s.gone && !m.closed {
		m.back.Dropped = append(m.back.Dropped, number)
		m.armLocked()
	}
}

// armLocked starts the timer that returns slabs.
func (m *SlabMappings) armLocked() {
	m.waiting.Store(true)
	switch {
	case m.armed:
		return
	case m.timer == nil:
		m.timer = time.AfterFunc(returnTime, m.overdue)
	default:
		m.timer.Reset(returnTime)
	}
	m.armed = true
}

// overdue runs when the timer fires.
func (m *SlabMappings) overdue() {
	m.mu.Lock()
	m.armed = false
	waiting := !m.back.Empty() && !m.closed
	sendReturns := m.sendReturns
	m.mu.Unlock()
	if waiting {
		sendReturns()
	}
}

// Repeated returns the memory of a handle that has only a number, and returns the number to the owner. The caller
// releases its reference.
func (m *SlabMappings) Repeated(h message.Handle) (*tensor.Storage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.byNumber[h.Storage]
	switch {
	case s == nil || s.storage == nil || s.gone:
		return nil, fmt.Errorf("%w: memory %d of a result, which this client does not have", status.ErrProtocol, h.Storage)
	case uint64(s.bytes()) != h.Bytes:
		return nil, fmt.Errorf("%w: %d bytes of memory %d, which has %d", status.ErrProtocol, h.Bytes, h.Storage, s.bytes())
	}
	m.confirmLocked(h.Storage)
	return s.storage.Retain().Borrow(), nil
}

// Keep keeps the memory of a handle mapped if the owner has numbered it, and confirms that to the owner. It takes s, and
// returns the storage for the result: each has a separate one, so that a result that was not closed can be found.
func (m *SlabMappings) Keep(h message.Handle, s *tensor.Storage) (*tensor.Storage, error) {
	if h.Storage == 0 {
		return s, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !m.repeats || m.closed:
		return s, nil
	case m.byNumber[h.Storage] != nil:
		s.Close()
		return nil, fmt.Errorf("%w: the owner sent a second descriptor for memory %d", status.ErrProtocol, h.Storage)
	}
	if m.byNumber == nil {
		m.byNumber = map[uint64]*slabMapping{}
	}
	m.byNumber[h.Storage] = &slabMapping{storage: s}
	m.confirmLocked(h.Storage)
	return s.Retain().Borrow(), nil
}

// confirmLocked returns a number whose memory stays mapped.
func (m *SlabMappings) confirmLocked(number uint64) {
	if !m.closed {
		m.back.Returned = append(m.back.Returned, number)
		m.armLocked()
	}
}

// Refuse returns the unused slabs and the other numbers of an answer.
func (m *SlabMappings) Refuse(handles []message.Handle) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.on || m.closed {
		return
	}
	for _, h := range handles {
		if h.Storage != 0 && m.repeats {
			m.refuseStorageLocked(h)
			continue
		}
		s := m.byNumber[h.Slab]
		switch {
		case h.Slab == 0 || s != nil && (s.memory == nil || s.used || s.gone):
		case s != nil:
			m.back.Returned = append(m.back.Returned, h.Slab)
			m.armLocked()
		case h.File >= 0:
			m.back.Dropped = append(m.back.Dropped, h.Slab)
			m.armLocked()
		}
	}
}

// refuseStorageLocked returns the number of memory that was not processed.
func (m *SlabMappings) refuseStorageLocked(h message.Handle) {
	switch {
	case m.byNumber[h.Storage] != nil:
		m.confirmLocked(h.Storage)
	case !h.Kept():
		m.back.Dropped = append(m.back.Dropped, h.Storage)
		m.armLocked()
	}
}

// TakeReturns removes and returns the slabs to return. A caller that cannot send them calls RestoreReturns.
func (m *SlabMappings) TakeReturns() (back SlabReturns) {
	if !m.waiting.Load() {
		return back
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting.Store(false)
	back, m.back = m.back, SlabReturns{}
	return back
}

// RestoreReturns undoes TakeReturns.
func (m *SlabMappings) RestoreReturns(back SlabReturns) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if back.Empty() || m.closed {
		return
	}
	m.back.Returned = append(back.Returned, m.back.Returned...)
	m.back.Dropped = append(back.Dropped, m.back.Dropped...)
	m.armLocked()
}

// MarkGone unmaps slabs that the owner will not reuse.
func (m *SlabMappings) MarkGone(numbers []uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, number := range numbers {
		s := m.byNumber[number]
		if s == nil {
			continue
		}
		s.gone = true
		if !s.used {
			delete(m.byNumber, number)
			s.unmap()
		}
	}
}

// Use returns the number of slabs and the mapped bytes.
func (m *SlabMappings) Use() (count int, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.byNumber {
		bytes += s.bytes()
	}
	return len(m.byNumber), bytes
}

// Close unmaps the unused slabs, and the others when their use ends. No slab is accepted after Close.
func (m *SlabMappings) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.ended.Store(true)
	if m.calls.Load() == 0 {
		m.unmapLocked()
	}
	m.back = SlabReturns{}
	if m.timer != nil {
		m.timer.Stop()
	}
}
