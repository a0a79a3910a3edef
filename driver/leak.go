package driver

import (
	"log/slog"
	"sync/atomic"
)

// Leak describes a device resource that became unreachable without being closed.
type Leak struct {
	// Device is the device's short name, such as "host" or "cuda:0".
	Device string
	// Kind is the kind of resource: "memory", "pinned host memory", "stream" and so on.
	Kind string
	// Bytes is its size; 0 if it has none.
	Bytes int64
	// Kept reports whether a slice or an address of it was returned ([Mapped.Data], [Addressable.DevicePointer]). It
	// may still be in use, so the resource is never released: its bytes stay until the process ends. Otherwise the
	// resource was released.
	Kept bool
}

// LeakStats counts the leaks of the process.
type LeakStats struct {
	// Kept and KeptBytes count what stays until the process ends.
	Kept, KeptBytes int64
	// Released and ReleasedBytes count what the garbage collector released.
	Released, ReleasedBytes int64
}

var (
	leaks struct {
		kept, keptBytes, released, releasedBytes atomic.Int64
	}
	leakHandler atomic.Pointer[func(Leak)]
)

// Leaks returns the counts so far. A program that closes everything has none; a long-running one should monitor Kept.
func Leaks() LeakStats {
	return LeakStats{
		Kept: leaks.kept.Load(), KeptBytes: leaks.keptBytes.Load(),
		Released: leaks.released.Load(), ReleasedBytes: leaks.releasedBytes.Load(),
	}
}

// OnLeak sets a handler that receives each leak, on any goroutine. It replaces the default, which logs a slog warning
// for kept resources, for the first ten leaks and then each time their number has doubled. Nil restores the default.
func OnLeak(handle func(Leak)) {
	if handle == nil {
		leakHandler.Store(nil)
		return
	}
	leakHandler.Store(&handle)
}

// ReportLeak counts a leak and calls the handler of [OnLeak]. Devices call it, but not within cleanups, because the
// handler may be slow.
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
