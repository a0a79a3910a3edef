package endpoint

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/sharedtensor/sharedtensor/driver"
)

// deviceSet finds a device by what another process calls it.
type deviceSet map[driver.UUID]driver.Device

// newDeviceSet refuses devices without a name and two of one name.
func newDeviceSet(devices []driver.Device) (deviceSet, error) {
	set := make(deviceSet, len(devices))
	for _, dev := range devices {
		info := dev.Info()
		if info.UUID.IsZero() {
			return nil, configuration(fmt.Errorf("%w: device %s has no UUID, so no other process could find it", ErrInvalid, info))
		}
		if set[info.UUID] != nil {
			return nil, configuration(fmt.Errorf("%w: device %s is given twice", ErrInvalid, info))
		}
		set[info.UUID] = dev
	}
	return set, nil
}

// find returns the device, or says that it is not here.
func (s deviceSet) find(uuid driver.UUID) (driver.Device, error) {
	if dev := s[uuid]; dev != nil {
		return dev, nil
	}
	return nil, capability(&driver.UnsupportedError{
		Feature:  "memory of device " + uuid.String(),
		Requires: "that this process opens that device",
	})
}

// quiet is a logger that passes on warnings and errors only.
func quiet(l *slog.Logger) *slog.Logger { return slog.New(atLeastWarn{l.Handler()}) }

type atLeastWarn struct{ slog.Handler }

func (h atLeastWarn) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && h.Handler.Enabled(ctx, level)
}

func (h atLeastWarn) WithAttrs(attrs []slog.Attr) slog.Handler {
	return atLeastWarn{h.Handler.WithAttrs(attrs)}
}

func (h atLeastWarn) WithGroup(name string) slog.Handler {
	return atLeastWarn{h.Handler.WithGroup(name)}
}
