package transfer

import (
	"slices"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

const (
	// maxKnownStorages is the number of storages whose state at the server a client tracks. A client that uses more in
	// turn sends each in full.
	maxKnownStorages = MaxMappings
	// maxMisses is the number of consecutive misses after which memory is always sent in full. An endpoint that
	// writes its arguments never keeps any.
	maxMisses = 2
)

// Known tracks which memory of a client its server keeps, for one connection. Memory gets a number with its second
// call, because memory that is used once is not worth keeping. The zero value is empty. It is safe for concurrent use.
type Known struct {
	mu   sync.Mutex
	seen []knownStorage // the most recently used is last
}

type knownStorage struct {
	number uint64
	kept   bool // by the server, according to its last answer
	misses int  // consecutive misses
}

// Share creates handles for the storages of a call, which it borrows. Handles of memory that the server keeps have no
// descriptor.
func (k *Known) Share(storages []*tensor.Storage) (*Export, error) {
	out := &Export{Storages: storages}
	for _, s := range storages {
		number, kept := k.use(s.ID())
		var err error
		if kept {
			err = out.addKept(s)
		} else {
			err = out.add(s)
		}
		if err != nil {
			out.Close()
			return nil, err
		}
		if h := &out.Handles[len(out.Handles)-1]; kept || h.File >= 0 { // memory without a descriptor becomes invalid when this process releases it
			h.Storage = number
		}
	}
	return out, nil
}

// use records that a call uses a storage. It returns the storage's number, or 0 if the server should not keep it, and
// whether the server keeps it.
func (k *Known) use(id uint64) (number uint64, kept bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := slices.IndexFunc(k.seen, func(s knownStorage) bool { return s.number == id })
	if at < 0 {
		if len(k.seen) >= maxKnownStorages {
			k.seen = k.seen[1:]
		}
		k.seen = append(k.seen, knownStorage{number: id})
		return 0, false
	}
	s := k.seen[at]
	k.seen = append(slices.Delete(k.seen, at, at+1), s)
	if s.misses >= maxMisses {
		return 0, false
	}
	return id, s.kept
}

// Answered records that a call was answered: the server keeps the memory that was sent with a number.
func (k *Known) Answered(handles []message.Handle) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range handles {
		k.noteLocked(h, true)
	}
}

// Missed records that a call was refused because the server no longer keeps memory that it named. It returns false if
// the call named none.
func (k *Known) Missed(handles []message.Handle) bool {
	if !slices.ContainsFunc(handles, message.Handle.Kept) {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range handles {
		k.noteLocked(h, false)
	}
	return true
}

func (k *Known) noteLocked(h message.Handle, kept bool) {
	if at := slices.IndexFunc(k.seen, func(s knownStorage) bool { return s.number == h.Storage }); at >= 0 && h.Storage != 0 {
		k.seen[at].kept = kept
		switch {
		case !kept && h.Kept():
			k.seen[at].misses++
		case kept && h.Kept():
			k.seen[at].misses = 0
		}
	}
}

// addKept adds a handle without a descriptor for a storage that the server keeps.
func (out *Export) addKept(s *tensor.Storage) error {
	h, err := s.Shareable()
	if err != nil {
		return status.Unshareable(err)
	}
	out.Handles = append(out.Handles, handleOf(driver.Handle{Kind: h.Kind, Device: h.Device, Bytes: h.Bytes, Offset: h.Offset}, -1))
	return nil
}

// handleOf converts a handle to its message.
func handleOf(h driver.Handle, file int32) message.Handle {
	return message.Handle{
		Kind: string(h.Kind), Device: message.UUID(h.Device), Bytes: uint64(h.Bytes), Offset: uint64(h.Offset), Blob: h.Blob, File: file,
	}
}
