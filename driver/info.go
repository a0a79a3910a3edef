package driver

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
)

// DeviceType is the kind of a device's memory, with DLPack's numbers (DLDeviceType in dlpack.h).
type DeviceType int32

const (
	// CPU is ordinary host memory.
	CPU DeviceType = 1
	// CUDA is memory of an NVIDIA GPU.
	CUDA DeviceType = 2
)

// String returns "cpu", "cuda", or the number as text for an unknown type.
func (t DeviceType) String() string {
	switch t {
	case CPU:
		return "cpu"
	case CUDA:
		return "cuda"
	}
	return "device type " + strconv.Itoa(int(t))
}

// UUID identifies a device across processes: a GPU's UUID, or the boot id of the host for its memory. The zero UUID
// means unknown.
type UUID [16]byte

// IsZero reports whether the UUID is unknown.
func (u UUID) IsZero() bool { return u == UUID{} }

// String returns the usual form, 8-4-4-4-12 hexadecimal digits.
func (u UUID) String() string {
	s := hex.EncodeToString(u[:])
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

// ParseUUID parses the result of String, also with NVIDIA's prefixes "GPU-" and "MIG-". Errors are [ErrInvalid].
func ParseUUID(s string) (UUID, error) {
	var u UUID
	t := strings.TrimSpace(s)
	t = strings.TrimPrefix(strings.TrimPrefix(t, "GPU-"), "MIG-")
	if len(t) != 36 || t[8] != '-' || t[13] != '-' || t[18] != '-' || t[23] != '-' {
		return UUID{}, fmt.Errorf("%w: %q is not a UUID", ErrInvalid, s)
	}
	if _, err := hex.Decode(u[:], []byte(strings.ReplaceAll(t, "-", ""))); err != nil {
		return UUID{}, fmt.Errorf("%w: %q is not a UUID", ErrInvalid, s)
	}
	return u, nil
}

// Info describes a device.
type Info struct {
	// Type is the kind of memory.
	Type DeviceType
	// Index is the device's ordinal in this process; it has no meaning in another.
	Index int
	// UUID identifies the device across processes.
	UUID UUID
	// Name is the vendor's name.
	Name string
	// Granularity is the unit to which allocations are rounded up, in bytes.
	Granularity int64
	// TotalBytes is the size of the device's memory; 0 if unknown.
	TotalBytes int64
}

// String returns the short name of the device: "host" or "cuda:0".
func (i Info) String() string {
	if i.Type == CPU {
		return "host"
	}
	return i.Type.String() + ":" + strconv.Itoa(i.Index)
}

// ParseDevice parses the name of a device: "host" or "cpu", "cuda" (the first) or "cuda:N". Errors are [ErrInvalid].
func ParseDevice(s string) (DeviceType, int, error) {
	name, number, numbered := strings.Cut(strings.ToLower(strings.TrimSpace(s)), ":")
	index := 0
	if numbered {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return 0, 0, fmt.Errorf("%w: device %q: the number after the colon is not one", ErrInvalid, s)
		}
		index = int(n)
	}
	switch {
	case name == "host" || name == "cpu":
		if index != 0 {
			return 0, 0, fmt.Errorf("%w: device %q: there is one host", ErrInvalid, s)
		}
		return CPU, 0, nil
	case name == "cuda":
		return CUDA, index, nil
	}
	return 0, 0, fmt.Errorf("%w: device %q: use host or cuda:N", ErrInvalid, s)
}

// PoolStats describes what the pools of this process keep, and the outcome of their allocations.
type PoolStats struct {
	// Slabs is the number of closed slabs that they keep, Bytes their size.
	Slabs, Bytes int64
	// Reused counts allocations in reused memory, Fresh those in new memory, and Busy those of Fresh although a
	// matching slab existed that another process still held.
	Reused, Fresh, Busy int64
}

var pools struct {
	slabs, bytes, reused, fresh, busy atomic.Int64
}

// Pools returns the totals of this process.
func Pools() PoolStats {
	return PoolStats{
		Slabs: pools.slabs.Load(), Bytes: pools.bytes.Load(),
		Reused: pools.reused.Load(), Fresh: pools.fresh.Load(), Busy: pools.busy.Load(),
	}
}

// CountPool adds to the totals of [Pools]. Pools call it.
func CountPool(change PoolStats) {
	pools.slabs.Add(change.Slabs)
	pools.bytes.Add(change.Bytes)
	pools.reused.Add(change.Reused)
	pools.fresh.Add(change.Fresh)
	pools.busy.Add(change.Busy)
}
