package driver

import (
	"log/slog"
	"sync/atomic"
)

// Leak is something of a device that was not closed and is not referred to any more: the garbage collector found it.
type Leak struct {
	// Device is the device's short name, such as "host" or "cuda:0".
	Device string
	// Kind says what it is: "memory", "pinned host memory", "stream" and so on.
	Kind string
	// Bytes is its size; 0 where it has none.
	Bytes int64
	// Kept is true where a slice or an address of it was handed out ([Mapped.Data], [Addressable.DevicePointer]).
	// Nobody can tell whether that is still in use, so it is never given back: its bytes stay as they are until the
	// process ends. Without it the thing was given back.
	Kept bool
}

// LeakStats counts the leaks of the process so far.
type LeakStats struct {
	// Kept and KeptBytes are what stays until the process ends.
	Kept, KeptBytes int64
	// Released and ReleasedBytes are what was given back although nobody closed it.
	Released, ReleasedBytes int64
}

var (
	leaks struct {
		kept, keptBytes, released, releasedBytes atomic.Int64
	}
	leakHandler atomic.Pointer[func(Leak)]
)

// Leaks counts the leaks of the process so far. A program that closes everything has none; one that serves for long
// watches Kept.
func Leaks() LeakStats {
	return LeakStats{
		Kept: leaks.kept.Load(), KeptBytes: leaks.keptBytes.Load(),
		Released: leaks.released.Load(), ReleasedBytes: leaks.releasedBytes.Load(),
	}
}

// OnLeak makes handle be told of each leak, from any goroutine, in the place of what logs by default: a warning of
// package slog for what is kept, for the first ten leaks and then each time that their number has doubled. nil brings
// the default back.
func OnLeak(handle func(Leak)) {
	if handle == nil {
		leakHandler.Store(nil)
		return
	}
	leakHandler.Store(&handle)
}

// ReportLeak counts a leak and tells the handler of [OnLeak]. Devices call it; it is not for cleanups themselves, since
// the handler may take its time.
func ReportLeak(l Leak) {
	count, bytes := &leaks.released, &leaks.releasedBytes
	if l.Kept {
		count, bytes = &leaks.kept, &leaks.keptBytes
	}
	bytes.Add(l.Bytes)
	n := count.Add(1)
	switch handle := leakHandler.Load(); {
	case handle != nil:
		(*handle)(l)
	case l.Kept && (n <= 10 || n&(n-1) == 0):
		slog.Warn("never closed, and kept until the process ends because a slice or address of it may be in use: call Close",
			"what", l.Kind, "device", l.Device, "bytes", l.Bytes, "kept", n, "kept_bytes", leaks.keptBytes.Load())
	}
}
