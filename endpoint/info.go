package endpoint

import (
	"math"
	"time"

	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// ModelInfo describes a published name at one moment.
type ModelInfo struct {
	// Name is the name.
	Name string `json:"name"`
	// Current is the version that new readers get; 0 where the name is withdrawn and somebody still holds a version.
	Current uint64 `json:"current"`
	// Versions are those that the owner still has memory of, the newest first.
	Versions []VersionInfo `json:"versions"`
	// Loading is the next version, where the owner is loading one or has failed to; else nil. A name that is loaded for
	// the first time has no versions yet, and Current is 0.
	Loading *LoadInfo `json:"loading,omitempty"`
}

// VersionInfo describes one version of a name.
type VersionInfo struct {
	// Version is its number.
	Version uint64 `json:"version"`
	// Bytes is the size of its tensors; tied ones count once.
	Bytes int64 `json:"bytes"`
	// Tensors is how many names it has.
	Tensors int `json:"tensors"`
	// Devices are those that its memory is on, as the owner numbers them, each once.
	Devices []DeviceInfo `json:"devices"`
	// Withdrawn reports whether its name was withdrawn since, so that nobody can acquire it any more. The name may have
	// been published again.
	Withdrawn bool `json:"withdrawn,omitempty"`
	// PublishedAt is when it was published.
	PublishedAt time.Time `json:"published_at"`
	// Source is where the tensors came from, for people; it may be empty.
	Source string `json:"source,omitempty"`
	// Publisher is the process that published it.
	Publisher Process `json:"publisher"`
	// Holders are the sessions that hold it, the oldest first. Sessions is how many there are: of very many some are
	// left off.
	Holders  []Holder `json:"holders"`
	Sessions int      `json:"sessions"`
	// DigestState says how the digests stand that the owner computes of it ([PublishOptions]), and Digest is that of
	// the whole where they are computed.
	DigestState DigestState    `json:"digest_state,omitempty"`
	Digest      *module.Digest `json:"digest,omitempty"`
}

// DigestState says how the digests stand that an owner computes of a version; it is empty where the owner computes
// none.
type DigestState string

const (
	// DigestPending are digests that are not computed yet.
	DigestPending DigestState = "pending"
	// DigestComputed are digests that the owner has computed.
	DigestComputed DigestState = "computed"
	// DigestFailed are digests that could not be computed: [Client.Digests] has the reason.
	DigestFailed DigestState = "failed"
)

// Process is a process as the kernel told it to the owner.
type Process struct {
	// PID is its number in the owner's view; 0 if the owner cannot see it.
	PID int32 `json:"pid"`
	// UID is its user.
	UID uint32 `json:"uid"`
	// Label is what it calls itself, for people.
	Label string `json:"label,omitempty"`
}

// Holder is a session that holds a version.
type Holder struct {
	Process
	// Session numbers the connection within the owner's life.
	Session uint64 `json:"session"`
	// Leases is how many times it holds the version.
	Leases int `json:"leases"`
	// Since is when it took the oldest lease.
	Since time.Time `json:"since"`
}

// decodeInfo is what a client makes of it.
func decodeInfo(in message.ModelInfo) ModelInfo {
	out := ModelInfo{Name: in.Name}
	for _, v := range in.Versions {
		if v.Current {
			out.Current = v.Version
		}
		version := VersionInfo{
			Version: v.Version, Bytes: clampBytes(v.Bytes), Tensors: int(clampBytes(v.Tensors)), Withdrawn: v.Withdrawn, PublishedAt: time.Unix(0, v.PublishedAt),
			Source: v.Origin.Source, Publisher: Process{PID: v.Origin.PID, UID: v.Origin.UID, Label: v.Origin.Label},
			Devices: decodeDevices(v.Devices), Holders: []Holder{},
		}
		for _, h := range v.Holders {
			version.Holders = append(version.Holders, Holder{
				Process: Process{PID: h.PID, UID: h.UID, Label: h.Label},
				Session: h.Session, Leases: int(h.Leases), Since: time.Unix(0, h.Since),
			})
		}
		version.DigestState = DigestState(v.DigestState.String())
		if len(v.Digest) == len(module.Digest{}) {
			version.Digest = (*module.Digest)(v.Digest)
		}
		version.Sessions = max(len(version.Holders), int(min(v.Sessions, math.MaxInt32)))
		out.Versions = append(out.Versions, version)
	}
	return out
}
