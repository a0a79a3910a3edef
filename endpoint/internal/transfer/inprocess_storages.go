package transfer

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Within a process memory is lent, not exported and imported: the receiver has references to the same storages. It is
// refused where another process could not have it, by the same checks, so that a program which works in one role works
// in the others.

// Lend is what importStorages is between processes: it returns the storages as a receiver with those devices may use
// them. It borrows the storages; the caller closes what it gets.
func Lend(devices Devices, storages []*tensor.Storage, opts driver.ImportOptions) ([]*tensor.Storage, error) {
	if len(storages) == 0 {
		return nil, nil
	}
	lent := make([]*tensor.Storage, 0, len(storages))
	for i, s := range storages {
		view, err := lendOne(devices, s, opts)
		if err != nil {
			CloseStorages(lent)
			return nil, fmt.Errorf("storage %d: %w", i, err)
		}
		lent = append(lent, view.Retain())
	}
	return lent, nil
}

// LentWith are the storages that came with a frame within the process, borrowed; none with others.
func LentWith(files *wire.Files) []*tensor.Storage {
	items := files.Lent()
	if len(items) == 0 {
		return nil
	}
	storages := make([]*tensor.Storage, len(items))
	for i, item := range items {
		storages[i] = item.(*tensor.Storage) // pipe.lend put nothing else there
	}
	return storages
}

// ExportLent is exportStorages for a peer in this process.
func ExportLent(storages []*tensor.Storage) (*Export, error) {
	out := &Export{Storages: storages, Handles: make([]message.Handle, 0, len(storages))}
	for i, s := range storages {
		h, err := s.Shareable()
		if err != nil {
			return nil, fmt.Errorf("storage %d: %w", i, status.Unshareable(err))
		}
		out.Handles = append(out.Handles, message.Handle{
			Kind: string(h.Kind), Device: message.UUID(h.Device), Bytes: uint64(h.Bytes), Offset: uint64(h.Offset), Blob: h.Blob, File: -1,
		})
	}
	return out, nil
}

// lendOne is lend for one storage, without a reference.
func lendOne(devices Devices, s *tensor.Storage, opts driver.ImportOptions) (*tensor.Storage, error) {
	h, err := s.Shareable()
	if err != nil {
		return nil, status.Unshareable(err)
	}
	if _, err := devices.find(h.Device); err != nil {
		return nil, err
	}
	if !opts.Writable {
		return s.Borrow(), nil
	}
	if f, ok := s.Memory().(driver.Freezer); ok && f.Frozen() {
		return nil, fmt.Errorf("%w: the memory is frozen", driver.ErrReadOnly)
	}
	if !s.Origin().Writable() {
		return nil, fmt.Errorf("%w: this process has it mapped read-only", driver.ErrReadOnly)
	}
	return s.Origin(), nil
}
