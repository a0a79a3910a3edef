package transfer

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Memory within a process is not exported and imported: the receiver gets references to the same storages. The same
// checks apply as between processes, so a program that works in one role works in the others.

// ShareInProcess returns references to the storages that a receiver with those devices can use, as an import would. It
// borrows the storages. The caller closes the returned ones.
func ShareInProcess(devices Devices, storages []*tensor.Storage, opts driver.ImportOptions) ([]*tensor.Storage, error) {
	if len(storages) == 0 {
		return nil, nil
	}
	shared := make([]*tensor.Storage, 0, len(storages))
	for i, s := range storages {
		view, err := shareOne(devices, s, opts)
		if err != nil {
			CloseStorages(shared)
			return nil, fmt.Errorf("storage %d: %w", i, err)
		}
		shared = append(shared, view.Retain())
	}
	return shared, nil
}

// InProcessStorages returns the storages that were sent with a frame within the process, borrowed. It returns nil for
// other frames.
func InProcessStorages(files *wire.Files) []*tensor.Storage {
	items := files.InProcess()
	if len(items) == 0 {
		return nil
	}
	storages := make([]*tensor.Storage, len(items))
	for i, item := range items {
		storages[i] = item.(*tensor.Storage) // transport.Pipe passes only storages
	}
	return storages
}

// ExportInProcess is ExportStorages for a peer in this process.
func ExportInProcess(storages []*tensor.Storage) (*Export, error) {
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

// shareOne checks and opens one storage for ShareInProcess, without adding a reference.
func shareOne(devices Devices, s *tensor.Storage, opts driver.ImportOptions) (*tensor.Storage, error) {
	h, err := s.Shareable()
	if err != nil {
		return nil, status.Unshareable(err)
	}
	if _, err := devices.Find(h.Device); err != nil {
		return nil, err
	}
	if !opts.Writable {
		return s.Borrow(), nil
	}
	if d, err := s.Memory().Describe(); err == nil && d.Frozen {
		return nil, fmt.Errorf("%w: the memory is frozen", driver.ErrReadOnly)
	}
	if !s.Origin().Writable() {
		return nil, fmt.Errorf("%w: this process has it mapped read-only", driver.ErrReadOnly)
	}
	return s.Origin(), nil
}
