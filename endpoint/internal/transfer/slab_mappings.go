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

// returnTime is how long slabs wait for a call that takes them back to the owner before they go by themselves.
const returnTime = 20 * time.Millisecond

// SlabMappings are the slabs of an owner that a client has mapped, on one connection. It trusts nothing that the owner
// says of them. The zero value takes none. It is safe for concurrent use.
type SlabMappings struct {
	mu     sync.Mutex
	on     bool
	by     map[uint64]*slabMapping
	back   SlabReturns
	tell   func()      // sends what has waited for too long
	timer  *time.Timer // made with the first that waits
	armed  bool
	closed bool

	// What each call asks for without taking the lock.
	over    atomic.Bool  // closed
	waiting atomic.Bool  // there is something in back
	calls   atomic.Int64 // whose answers may be in slabs and were not looked at
}

// slabMapping is one of them.
type slabMapping struct {
	memory driver.Slab
	used   bool // somebody here has memory of it
	gone   bool // the owner does not use it again
}

// unmapLocked unmaps what nobody here uses.
func (m *SlabMappings) unmapLocked() {
	for number, s := range m.by {
		if !s.used {
			delete(m.by, number)
			_ = s.memory.Close() // nobody is left to be told
		}
	}
}

// SlabReturns are slabs on their way back.
type SlabReturns struct {
	// Returned are the numbers of slabs that the owner may use again, Dropped those of slabs that it must not.
	Returned, Dropped []uint64
}

// Empty reports whether there are none.
func (r SlabReturns) Empty() bool { return len(r.Returned) == 0 && len(r.Dropped) == 0 }

// Allow lets there be slabs. tell is called, on a goroutine of its own, when slabs have waited for a while: it takes
// them with Back.
func (m *SlabMappings) Allow(tell func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.on, m.tell = true, tell
}

// Expect begins the time in which an answer may come that is in a slab. Until Looked ends it mappings stay, also where
// the connection ends.
func (m *SlabMappings) Expect() { m.calls.Add(1) }

// Looked ends what Expect began: the answer has come and was looked at, or will not come.
func (m *SlabMappings) Looked() {
	if m.calls.Add(-1) > 0 || !m.over.Load() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unmapLocked()
}

// Storage maps the slab of a handle, or finds its mapping. It takes the descriptor out of the files if there is one.
// Errors are [status.ErrProtocol] for what no owner says, and those of the device.
func (m *SlabMappings) Storage(devices Devices, h message.Handle, files *wire.Files) (*tensor.Storage, error) {
	s, err := m.mapping(devices, h, files)
	if err != nil {
		m.Refuse([]message.Handle{h})
		return nil, err
	}
	number := h.Slab
	mem, err := s.memory.Use(int64(h.Bytes), func(clean bool) { m.ended(number, s, clean) })
	if err != nil {
		m.ended(number, s, false)
		return nil, err
	}
	return tensor.NewLentStorage(mem, ""), nil
}

// mapping is the mapping of a slab, which is used from here on.
func (m *SlabMappings) mapping(devices Devices, h message.Handle, files *wire.Files) (*slabMapping, error) {
	if h.File >= 0 {
		return m.newMapping(devices, h, files)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.by[h.Slab]
	switch {
	case s == nil || s.used || s.gone:
		return nil, fmt.Errorf("%w: the owner names slab %d, which this client has not given back", status.ErrProtocol, h.Slab)
	case h.Bytes > uint64(s.memory.Bytes()) || h.SlabBytes != 0:
		return nil, fmt.Errorf("%w: %d bytes of slab %d, which has %d", status.ErrProtocol, h.Bytes, h.Slab, s.memory.Bytes())
	}
	s.used = true
	return s, nil
}

// newMapping maps a slab that comes with its descriptor.
func (m *SlabMappings) newMapping(devices Devices, h message.Handle, files *wire.Files) (*slabMapping, error) {
	dev, err := devices.find(driver.UUID(h.Device))
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
	if m.by[h.Slab] != nil {
		_ = memory.Close() // the error to tell is another
		return nil, fmt.Errorf("%w: slab %d comes with a descriptor for the second time", status.ErrProtocol, h.Slab)
	}
	if m.by == nil {
		m.by = map[uint64]*slabMapping{}
	}
	m.by[h.Slab] = s
	return s, nil
}

// ended notes that nobody here uses a slab any more. What is not clean somebody may: it must not be used again.
func (m *SlabMappings) ended(number uint64, s *slabMapping, clean bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.used = false
	if clean && !s.gone && !m.closed {
		m.back.Returned = append(m.back.Returned, number)
		m.armLocked()
		return
	}
	_ = s.memory.Close() // nobody is left to be told
	if m.by[number] == s {
		delete(m.by, number)
	}
	if !s.gone && !m.closed {
		m.back.Dropped = append(m.back.Dropped, number)
		m.armLocked()
	}
}

// armLocked has what waits sent after a while.
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

// overdue is called by the timer.
func (m *SlabMappings) overdue() {
	m.mu.Lock()
	m.armed = false
	waiting := !m.back.Empty() && !m.closed
	tell := m.tell
	m.mu.Unlock()
	if waiting {
		tell()
	}
}

// Refuse gives back the slabs of an answer that nobody uses.
func (m *SlabMappings) Refuse(handles []message.Handle) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.on || m.closed {
		return
	}
	for _, h := range handles {
		s := m.by[h.Slab]
		switch {
		case h.Slab == 0 || s != nil && (s.used || s.gone):
		case s != nil:
			m.back.Returned = append(m.back.Returned, h.Slab)
			m.armLocked()
		case h.File >= 0:
			m.back.Dropped = append(m.back.Dropped, h.Slab)
			m.armLocked()
		}
	}
}

// Back takes what waits to be sent. Whoever cannot send it puts it back.
func (m *SlabMappings) Back() (back SlabReturns) {
	if !m.waiting.Load() {
		return back
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting.Store(false)
	back, m.back = m.back, SlabReturns{}
	return back
}

// PutBack undoes Back.
func (m *SlabMappings) PutBack(back SlabReturns) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if back.Empty() || m.closed {
		return
	}
	m.back.Returned = append(back.Returned, m.back.Returned...)
	m.back.Dropped = append(back.Dropped, m.back.Dropped...)
	m.armLocked()
}

// Gone unmaps slabs that the owner does not use again.
func (m *SlabMappings) Gone(numbers []uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, number := range numbers {
		s := m.by[number]
		if s == nil {
			continue
		}
		s.gone = true
		if !s.used {
			delete(m.by, number)
			_ = s.memory.Close() // nobody is left to be told
		}
	}
}

// Use is how many slabs there are, and how many bytes are mapped of them.
func (m *SlabMappings) Use() (count int, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.by {
		bytes += s.memory.Bytes()
	}
	return len(m.by), bytes
}

// Close unmaps what nobody here uses, and the rest when that ends. Nothing is taken any more.
func (m *SlabMappings) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.over.Store(true)
	if m.calls.Load() == 0 {
		m.unmapLocked()
	}
	m.back = SlabReturns{}
	if m.timer != nil {
		m.timer.Stop()
	}
}
