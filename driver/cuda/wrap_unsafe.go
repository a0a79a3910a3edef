package cuda

import (
	"unsafe"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// checkOrdinal checks that an address is of memory on this device.
func (d *Device) checkOrdinal(ptr cu.DevicePtr) error {
	at := new(int32)
	err := check("cuPointerGetAttribute",
		d.p.ctx.PointerGetAttribute(unsafe.Pointer(at), cu.POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr))
	if err == nil && cu.Device(*at) != d.handle {
		err = invalid("%#x is an address on device %d, not on %s", uint64(ptr), *at, d.info)
	}
	return err
}
