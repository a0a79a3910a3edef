package driver

import (
	"fmt"
	"reflect"
)

// CheckDevice returns [ErrInvalid] if dev is nil, also as a nil pointer in the interface. Functions that take a device call it
// first, so that the error names the mistake of their caller.
func CheckDevice(dev Device) error {
	if v := reflect.ValueOf(dev); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("%w: the device is nil", ErrInvalid)
	}
	return nil
}
