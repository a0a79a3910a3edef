package endpoint

import (
	"math"
	"time"

	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// ModelInfo describes a published name at one moment.
type ModelInfo struct {
	// Name is the published name.
	Name string `json:"name"`
	// Current is the version that new readers get; 0 if the name is withdrawn or has never been published.
	Current uint64 `json:"current"`
	// Versions lists the versions in the owner's memory, newest first.
	Versions []VersionInfo `json:"versions"`
	// Loading describes the next version if the owner is loading it or has failed to; otherwise it is nil. A name that
	// is loaded for the first time has no versions and a Current of 0.
	Loading *LoadInfo `json:"loading,omitempty"`
	// NotAdopted lists the versions that an earlier owner has kept and that this one cannot map, oldest first. They stay in
	// the store until the name is withdrawn, and the next owner tries again.
	NotAdopted []NotAdopted `json:"not_adopted,omitempty"`
	// Incomplete describes the version that waits for parts ([PublishOptions.Part]); nil if there is none. Only lists have it.
	Incomplete *IncompleteInfo `json:"incomplete,omitempty"`
}

// NotAdopted is a kept version of an earlier owner that this one cannot map.
type NotAdopted struct {
	// Name and Version identify it.
	Name    string `json:"name"`
	Version uint64 `json:"version"`
	// Reason describes why it cannot be mapped.
	Reason string `json:"reason"`
	// Bytes is the size of its storages.
	Bytes int64 `json:"bytes"`
	// Withdrawn reports whether its name was withdrawn while it had readers.
	Withdrawn bool `json:"withdrawn,omitempty"`
	// PublishedAt is the time of publication.
	PublishedAt time.Time `json:"published_at"`
	// Source is the origin of the tensors, for people. It may be empty.
	Source string `json:"source,omitempty"`
}

// decodeNotAdopted converts a description from its wire form.
func decodeNotAdopted(in message.NotAdopted) NotAdopted {
	return NotAdopted{
		Name: in.Name, Version: in.Version, Reason: in.Reason, Bytes: clampBytes(in.Bytes), Withdrawn: in.Withdrawn,
		PublishedAt: time.Unix(0, in.PublishedAt), Source: in.Source,
	}
}

// VersionInfo describes one version of a name.
type VersionInfo struct {
	// Version is the number of the version.
	Version uint64 `json:"version"`
	// Bytes is the size of its tensors. Tied tensors count once.
	Bytes int64 `json:"bytes"`
	// Tensors is the number of tensor names.
	Tensors int `json:"tensors"`
	// Devices lists the devices of its memory once each, with the owner's indexes.
	Devices []DeviceInfo `json:"devices"`
	// Withdrawn reports whether its name was withdrawn, so that it can no longer be acquired. The name may have been
	// published again.
	Withdrawn bool `json:"withdrawn,omitempty"`
	// PublishedAt is the time of publication.
	PublishedAt time.Time `json:"published_at"`
	// Source is the origin of the tensors, for people. It may be empty.
	Source string `json:"source,omitempty"`
	// Publisher is the process that published it.
	Publisher Process `json:"publisher"`
	// Holders lists sessions that hold the version, oldest first. It may be truncated; Sessions is their total number.
	Holders  []Holder `json:"holders"`
	Sessions int      `json:"sessions"`
	// DigestState is the state of the digests that the owner computes ([PublishOptions]). Digest is that of the whole
	// version once they are computed.
	DigestState DigestState    `json:"digest_state,omitempty"`
	Digest      *module.Digest `json:"digest,omitempty"`
	// Placements lists its copies on other devices.
	Placements []PlacementInfo `json:"placements,omitempty"`
	// Parts is the number of parts in which it was published ([PublishOptions.Part]); 0 for a whole version.
	Parts int `json:"parts,omitempty"`
}

// DigestState is the state of the digests that an owner computes for a version. It is empty if the owner computes none.
type DigestState string

const (
	// DigestPending means that the digests are not computed yet.
	DigestPending DigestState = "pending"
	// DigestComputed means that the digests are computed.
	DigestComputed DigestState = "computed"
	// DigestFailed means that the digests could not be computed. [Client.Digests] returns the reason.
	DigestFailed DigestState = "failed"
)

// Process identifies a process, as the kernel reported it to the owner.
type Process struct {
	// PID is its process id as seen by the owner; 0 if it is in a PID namespace that the owner cannot see.
	PID int32 `json:"pid"`
	// UID is its user id.
	UID uint32 `json:"uid"`
	// Label is its name for people, chosen by the process.
	Label string `json:"label,omitempty"`
}

// Holder is a session that holds a version.
type Holder struct {
	Process
	// Session is the number of the connection, unique until the owner restarts.
	Session uint64 `json:"session"`
	// Leases is the number of its leases of the version.
	Leases int `json:"leases"`
	// Since is the time of its oldest lease.
	Since time.Time `json:"since"`
	// Placements lists the UUIDs of the devices on which it holds placements of the version.
	Placements []string `json:"placements,omitempty"`
}

// decodeInfo converts a model's description from its wire form.
func decodeInfo(in message.ModelInfo) ModelInfo {
	out := ModelInfo{Name: in.Name}
	for _, v := range in.Versions {
		if v.Current {
			out.Current = v.Version
		}
		version := VersionInfo{
			Version: v.Version, Bytes: clampBytes(v.Bytes), Tensors: int(clampBytes(v.Tensors)), Withdrawn: v.Withdrawn, PublishedAt: time.Unix(0, v.PublishedAt),
			Source: v.Origin.Source, Publisher: Process{PID: v.Origin.PID, UID: v.Origin.UID, Label: v.Origin.Label},
			Parts: int(min(v.Parts, math.MaxInt32)), Devices: decodeDevices(v.Devices), Holders: []Holder{},
		}
		for _, h := range v.Holders {
			version.Holders = append(version.Holders, Holder{
				Process: Process{PID: h.PID, UID: h.UID, Label: h.Label},
				Session: h.Session, Leases: int(h.Leases), Since: time.Unix(0, h.Since),
				Placements: decodeUUIDs(h.Placements),
			})
		}
		version.Placements = decodePlacements(v.Placements)
		version.DigestState = DigestState(v.DigestState.String())
		if len(v.Digest) == len(module.Digest{}) {
			version.Digest = (*module.Digest)(v.Digest)
		}
		version.Sessions = max(len(version.Holders), int(min(v.Sessions, math.MaxInt32)))
		out.Versions = append(out.Versions, version)
	}
	return out
}
