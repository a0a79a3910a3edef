package module

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
)

// Freeze makes the state dict ready to be announced to other processes: it waits until the devices have finished all
// work that this process started ([driver.Syncer]), so that the bytes are complete, and then closes every storage that
// can be closed ([driver.Freezer]) against new writers. Mappings that exist stay writable, those of this process too.
// Freezing twice is nil. It borrows sd. On error some storages may be frozen.
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
