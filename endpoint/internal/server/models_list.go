package server

import (
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

const (
	// pageBytes is the maximum size of an answer that lists versions. The limit of frames may reduce it.
	pageBytes = 4 << 20
	// versionBytes and modelHolderBytes are the maximum encoded sizes of a version and a holder without their texts.
	versionBytes, modelHolderBytes = 240, 64
	// placementBytes and placedBytes are those of a placement and of a device in a holder.
	placementBytes, placedBytes = 128, 18
)

// pageRoom returns the maximum size in bytes of an answer that lists versions.
func (m *Models) pageRoom() int64 {
	frame := m.Limits.Wire.WithDefaults().Frame
	return min(frame/2, pageBytes)
}

// sizeOfVersion returns an upper bound of the encoded size of a version.
func sizeOfVersion(name string, v *message.VersionInfo) int64 {
	n := versionBytes + len(name) + len(v.Origin.Label) + len(v.Origin.Source)
	for _, h := range v.Holders {
		n += modelHolderBytes + len(h.Label) + placedBytes*len(h.Placements)
	}
	for _, p := range v.Placements {
		n += placementBytes + len(p.Device.Name)
	}
	return int64(n) + engine.SizeOfDevices(v.Devices)
}

// fitVersion removes the latest holders that do not fit into room, and sets the number of removed holders.
func fitVersion(name string, v *message.VersionInfo, room int64) {
	for all := len(v.Holders); len(v.Holders) > 0 && sizeOfVersion(name, v) > room; {
		v.Holders, v.Sessions = v.Holders[:len(v.Holders)/2], uint64(all)
	}
}

// page returns one part of the list of versions, up to pageRoom, and the loads. If sees is not nil, it selects the names.
func (m *Models) page(in message.List, sees func(name string) bool) message.Listed {
	var out message.Listed
	room := m.pageRoom()
	if in.After == "" {
		out.Loading, out.NotAdopted, out.Incomplete = m.loads.list(), m.notAdopted.list(sees), m.incomplete.list(sees)
		if sees != nil {
			out.Loading = slices.DeleteFunc(out.Loading, func(l message.Loading) bool { return !sees(l.Name) })
		}
	}
	left := room
	m.Catalog.Page(in.After, in.AfterVersion, func(name string, current uint64, info catalog.VersionInfo) bool {
		if sees != nil && !sees(name) {
			return true
		}
		v := encodeVersion(info)
		fitVersion(name, &v, room)
		left -= sizeOfVersion(name, &v)
		n := len(out.Models)
		if n > 0 && left < 0 {
			last := out.Models[n-1]
			out.Next, out.NextVersion = last.Name, last.Versions[len(last.Versions)-1].Version
			return false
		}
		if n == 0 || out.Models[n-1].Name != name {
			out.Models = append(out.Models, message.ModelInfo{Name: name, Withdrawn: current == 0})
			n++
		}
		out.Models[n-1].Versions = append(out.Models[n-1].Versions, v)
		return true
	})
	return out
}

// fitInfo returns the description of one name, up to pageRoom.
func (m *Models) fitInfo(info catalog.Info) message.ModelInfo {
	out := encodeInfo(info)
	room := m.pageRoom()
	left := room
	for i := range out.Versions {
		v := &out.Versions[i]
		fitVersion(out.Name, v, room)
		if left -= sizeOfVersion(out.Name, v); left < 0 && i > 0 {
			out.More = uint64(len(out.Versions) - i)
			out.Versions = out.Versions[:i]
			break
		}
	}
	return out
}

// encodeInfo converts the info to its wire form.
func encodeInfo(info catalog.Info) message.ModelInfo {
	out := message.ModelInfo{Name: info.Name, Withdrawn: info.Current == 0}
	for _, v := range info.Versions {
		out.Versions = append(out.Versions, encodeVersion(v))
	}
	return out
}

// encodeVersion converts a version to its wire form.
func encodeVersion(v catalog.VersionInfo) message.VersionInfo {
	from := v.Origin.Publisher
	version := message.VersionInfo{
		Version: v.Version, Bytes: uint64(v.Bytes), Tensors: uint64(v.Tensors), Current: v.Current, Withdrawn: v.Withdrawn,
		PublishedAt: v.Origin.At.UnixNano(),
		Origin:      message.Origin{PID: from.PID, UID: from.UID, Label: from.Label, Source: v.Origin.Source},
	}
	version.DigestState, version.Digest = recordOf(v.Record).digests.state()
	version.Parts = uint64(recordOf(v.Record).Parts)
	for _, d := range v.Devices {
		version.Devices = append(version.Devices, codec.EncodeDevice(d))
	}
	version.Placements = encodePlacements(v.Placements)
	for _, h := range v.Holders {
		if v.Current && h.ID == adoptedHolder.ID { // it keeps the version only after that is superseded
			continue
		}
		version.Holders = append(version.Holders, message.Holder{
			Session: h.ID, Leases: uint64(h.Leases), PID: h.PID, UID: h.UID, Label: h.Label, Since: h.Since.UnixNano(),
		})
		for _, uuid := range h.Placements {
			last := &version.Holders[len(version.Holders)-1]
			last.Placements = append(last.Placements, message.UUID(uuid))
		}
	}
	return version
}
