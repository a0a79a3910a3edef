package endpoint

import (
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/server"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// PlacementInfo describes the copy of a version on another device than that of its publication
// ([ServerOptions].Placements).
type PlacementInfo struct {
	// Device is the device, with the owner's index.
	Device DeviceInfo `json:"device"`
	// Bytes is the size of its memory on the device.
	Bytes int64 `json:"bytes"`
	// Making reports whether the owner still copies.
	Making bool `json:"making,omitempty"`
	// MadeAt is the time when the copy was complete; zero before.
	MadeAt time.Time `json:"made_at,omitzero"`
	// Hits counts the requests that found it.
	Hits uint64 `json:"hits"`
	// Holders is the number of sessions that hold it or wait for it.
	Holders int `json:"holders"`
	// UnusedSince is the time when its last lease ended; zero while it is held or made.
	UnusedSince time.Time `json:"unused_since,omitzero"`
}

// PlacementDevice describes the placements of a server on one device: settings, current use, and counters since its start.
type PlacementDevice struct {
	// Device is the device, with the owner's index.
	Device DeviceInfo `json:"device"`
	// Budget limits the bytes of the placements, and Keep is how long they stay without holders.
	Budget int64         `json:"budget"`
	Keep   time.Duration `json:"keep"`
	// Bytes is the size of the placements, also of those that are being made, and Placements their number.
	Bytes      int64 `json:"bytes"`
	Placements int   `json:"placements"`
	// Hits counts requests that found a placement.
	Hits uint64 `json:"hits"`
	// Copies counts placements that were made, CopiedBytes is their size, and CopyTime the duration of their copies.
	Copies      uint64        `json:"copies"`
	CopiedBytes int64         `json:"copied_bytes"`
	CopyTime    time.Duration `json:"copy_time"`
	// Evictions counts placements without holders that were freed before their time for lack of room.
	Evictions uint64 `json:"evictions"`
	// Failures counts placements that could not be made.
	Failures uint64 `json:"failures"`
}

// MemoryPlacements is the memory of placements.
const MemoryPlacements MemoryUsage = server.MemoryPlacements

// decodePlacements converts placements from their wire form.
func decodePlacements(in []message.Placement) (out []PlacementInfo) {
	for _, p := range in {
		out = append(out, PlacementInfo{
			Device: decodeDevices([]message.DeviceInfo{p.Device})[0], Bytes: clampBytes(p.Bytes), Making: p.Making, MadeAt: fromNanos(p.MadeAt),
			Hits: p.Hits, Holders: int(clampBytes(p.Holders)), UnusedSince: fromNanos(p.UnusedSince),
		})
	}
	return out
}

// decodePlacementDevices converts the devices of placements from their wire form.
func decodePlacementDevices(in []message.PlacementDevice) (out []PlacementDevice) {
	for _, p := range in {
		out = append(out, PlacementDevice{
			Device: decodeDevices([]message.DeviceInfo{p.Device})[0], Budget: clampBytes(p.Budget), Keep: time.Duration(p.Keep),
			Bytes: clampBytes(p.Bytes), Placements: int(clampBytes(p.Placements)), Hits: p.Hits, Copies: p.Copies,
			CopiedBytes: clampBytes(p.CopiedBytes), CopyTime: time.Duration(p.CopyTime), Evictions: p.Evictions, Failures: p.Failures,
		})
	}
	return out
}

// decodeUUIDs returns the texts of UUIDs.
func decodeUUIDs(in []message.UUID) (out []string) {
	for _, uuid := range in {
		out = append(out, driver.UUID(uuid).String())
	}
	return out
}
