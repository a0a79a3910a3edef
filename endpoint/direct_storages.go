package endpoint

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Within a process memory is lent, not exported and imported: who gets it has references to the same storages. It is refused where another
// process could not have it, by the same checks, so that a program which works in one role works in the others.

// shareable refuses storages that could not be exported. A storage is asked once in its life.
func shareable(storages []*tensor.Storage) error {
	for i, s := range storages {
		if _, err := s.Shareable(); err != nil {
			return fmt.Errorf("storage %d: %w", i, incapable(err))
		}
	}
	return nil
}

// lend is what importStorages is between processes: it returns the storages as who has those devices may use them. It borrows the
// storages; the caller closes what it gets.
func lend(devices deviceSet, storages []*tensor.Storage, opts driver.ImportOptions) ([]*tensor.Storage, error) {
	if len(storages) == 0 {
		return nil, nil
	}
	lent := make([]*tensor.Storage, 0, len(storages))
	for i, s := range storages {
		view, err := lendOne(devices, s, opts)
		if err != nil {
			closeStorages(lent)
			return nil, fmt.Errorf("storage %d: %w", i, err)
		}
		lent = append(lent, view.Retain())
	}
	return lent, nil
}

// lendOne is lend for one storage, without a reference.
func lendOne(devices deviceSet, s *tensor.Storage, opts driver.ImportOptions) (*tensor.Storage, error) {
	h, err := s.Shareable()
	if err != nil {
		return nil, incapable(err)
	}
	if _, err := devices.find(h.Device); err != nil {
		return nil, err
	}
	if !opts.Writable {
		return s.ReadOnly(), nil
	}
	if f, ok := s.Memory().(driver.Freezer); ok && f.Frozen() {
		return nil, fmt.Errorf("%w: the memory is frozen", driver.ErrReadOnly)
	}
	if !s.Origin().Writable() {
		return nil, fmt.Errorf("%w: this process has it mapped read-only", driver.ErrReadOnly)
	}
	return s.Origin(), nil
}
