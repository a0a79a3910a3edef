package module

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
)

// Freeze prepares the state dict for publication. It waits until the devices have finished all work that this process
// started, so that the bytes are complete, and then freezes every storage whose device supports it against new writers
// ([driver.Freeze]). Existing mappings stay writable, including those of this process. A second Freeze
// returns nil. It borrows sd. After an error some storages may be frozen.
func Freeze(sd *StateDict) error {
	storages := sd.Storages()
	synced := map[driver.Device]bool{}
	for _, s := range storages {
		dev := s.Memory().Device()
		if synced[dev] {
			continue
		}
		synced[dev] = true
		if err := dev.Synchronize(); err != nil {
			return fmt.Errorf("%v: wait for the device: %w", dev.Info(), err)
		}
	}
	for _, s := range storages {
		if err := driver.Freeze(s.Memory()); err != nil {
			return fmt.Errorf("freeze storage of %d bytes: %w", s.Bytes(), err)
		}
	}
	return nil
}
