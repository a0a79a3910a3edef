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
	// knownStorages is of how many storages a client remembers what its server has of them. With more in turn each is
	// sent in full.
	knownStorages = KeptStorages
	// missesAllowed is how often in a row memory that was to be kept may be gone before it is sent in full with each
	// call: an endpoint that writes its arguments never keeps any.
	missesAllowed = 2
)

// Known is what a client knows of the memory that its server keeps, on one connection. Memory that is used for one call
// alone is not kept: only the second call gives it a number. The zero value knows nothing. It is safe for concurrent
// use.
type Known struct {
	mu   sync.Mutex
	seen []knownStorage // those used last at the end
}

type knownStorage struct {
	number uint64
	kept   bool // by the server, as far as is known
	misses int  // in a row
}

// Share makes handles for the storages of a call, which it borrows: without a descriptor where the
// server keeps the memory.
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
		if h := &out.Handles[len(out.Handles)-1]; kept || h.File >= 0 { // other memory ends with this process's reference
			h.Storage = number
		}
	}
	return out, nil
}

// use notes that a call has a storage. It returns its number, 0 where it is not to be kept, and whether the server
// keeps it.
func (k *Known) use(id uint64) (number uint64, kept bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := slices.IndexFunc(k.seen, func(s knownStorage) bool { return s.number == id })
	if at < 0 {
		if len(k.seen) >= knownStorages {
			k.seen = k.seen[1:]
		}
		k.seen = append(k.seen, knownStorage{number: id})
		return 0, false
	}
	s := k.seen[at]
	k.seen = append(slices.Delete(k.seen, at, at+1), s)
	if s.misses >= missesAllowed {
		return 0, false
	}
	return id, s.kept
}

// Answered notes that a call was answered: memory that went with it under a number is kept.
func (k *Known) Answered(handles []message.Handle) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range handles {
		k.noteLocked(h, true)
	}
}

// Missed notes that a call was refused because memory that it named is not kept. It is false where it
// named none.
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

// addKept names a storage that the server keeps.
func (out *Export) addKept(s *tensor.Storage) error {
	h, err := s.Shareable()
	if err != nil {
		return status.Unshareable(err)
	}
	out.Handles = append(out.Handles, handleOf(driver.Handle{Kind: h.Kind, Device: h.Device, Bytes: h.Bytes, Offset: h.Offset}, -1))
	return nil
}

// handleOf describes memory to a peer.
func handleOf(h driver.Handle, file int32) message.Handle {
	return message.Handle{
		Kind: string(h.Kind), Device: message.UUID(h.Device), Bytes: uint64(h.Bytes), Offset: uint64(h.Offset), Blob: h.Blob, File: file,
	}
}
