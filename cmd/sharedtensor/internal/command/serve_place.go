package command

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// placeFlag is one value of serve --place: DEVICE[=BYTES][,keep=DURATION].
type placeFlag struct {
	device string
	budget int64 // 0 for the memory of the device
	keep   time.Duration
}

// defaultKeep is how long a placement stays without holders if --place does not say it.
const defaultKeep = 5 * time.Minute

// parsePlace parses a value of --place.
func parsePlace(text string) (placeFlag, error) {
	p := placeFlag{keep: defaultKeep}
	invalid := fmt.Errorf("--place %q: use DEVICE, DEVICE=BYTES or DEVICE=BYTES,keep=DURATION, such as cuda:0=40GiB,keep=5m", text)
	for i, word := range strings.Split(text, ",") {
		name, value, valued := strings.Cut(word, "=")
		var err error
		switch {
		case i == 0:
			if _, _, err = driver.ParseDevice(name); err == nil && valued {
				if p.budget, err = term.ParseBytes(value); err == nil && p.budget == 0 {
					err = invalid
				}
			}
			p.device = name
		case name == "keep" && valued:
			if p.keep, err = time.ParseDuration(value); err == nil && p.keep < 0 {
				err = invalid
			}
		default:
			err = invalid
		}
		if err != nil {
			return p, invalid
		}
	}
	return p, nil
}

// openPlaces opens the devices of --place, and uses dev for its own name. The caller closes the opened devices, also
// after an error.
func openPlaces(flags []string, dev driver.Device) (places []endpoint.PlacementOptions, opened []driver.Device, err error) {
	for _, text := range flags {
		p, err := parsePlace(text)
		if err != nil {
			return places, opened, err
		}
		kind, index, _ := driver.ParseDevice(p.device) // parsePlace has checked it
		on := dev
		for _, d := range append([]driver.Device{dev}, opened...) {
			if info := d.Info(); info.Type == kind && (kind == driver.CPU || info.Index == index) {
				on = d
			}
		}
		if info := on.Info(); info.Type != kind || kind != driver.CPU && info.Index != index {
			if on, err = cli.OpenDevice(p.device); err != nil {
				return places, opened, fmt.Errorf("--place %s: %w", p.device, err)
			}
			opened = append(opened, on)
		}
		places = append(places, endpoint.PlacementOptions{Device: on, Budget: p.budget, Keep: p.keep})
	}
	return places, opened, nil
}

// closeAll closes devices.
func closeAll(devices []driver.Device) error {
	var errs []error
	for _, dev := range devices {
		errs = append(errs, dev.Close())
	}
	return errors.Join(errs...)
}
