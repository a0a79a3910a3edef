package module

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
)

// Freeze prepares the state dict for publication. It waits until the devices have finished all work that this process
// started ([driver.Syncer]), so that the bytes are complete, and then freezes every storage that supports it against
// new writers ([driver.Freezer]). Existing mappings stay writable, including those of this process. A second Freeze
// returns nil. It borrows sd. After an error some storages may be frozen.
func Freeze(sd *StateDict) error {
	storages := sd.Storages()
	synced := map[driver.Device]bool{}
	for _, s := range storages {
		dev := s.Memory().Device()
		syncer, ok := dev.(driver.Syncer)
		if !ok || synced[dev] {
			continue
		}
		synced[dev] = true
		if err := syncer.Synchronize(); err != nil {
			return fmt.Errorf("%v: wait for the device: %w", dev.Info(), err)
		}
	}
	for _, s := range storages {
		freezer, ok := s.Memory().(driver.Freezer)
		if !ok {
			continue
		}
		if err := freezer.Freeze(); err != nil {
			return fmt.Errorf("freeze storage of %d bytes: %w", s.Bytes(), err)
		}
	}
	return nil
}
