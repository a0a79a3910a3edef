package driver

// Slab is mapped memory that several [Memory] values use, one after another. Allocating and mapping pages is most of
// the cost of a fresh tensor. Earlier receivers may still map a slab and see its later content, so a slab must stay
// among processes that may see that. Its methods are safe for concurrent use.
type Slab interface {
	// Bytes returns the size.
	Bytes() int64
	// Use returns owned memory of the first bytes of the slab with their current content: zeros of a new slab,
	// otherwise what earlier users wrote. A slab has one user at a time, otherwise Use fails with [ErrBusy]; a size
	// above Bytes is [ErrInvalid]. done is called once, on any goroutine, after the memory was closed and its last pin
	// was released, and must not refer to the memory. clean reports whether this process can no longer use the memory:
	// it is false after [Memory.Export] or a [Memory.Seal], and if the memory became unreachable without Close. A slab
	// that is not clean should not be reused.
	Use(bytes int64, done func(clean bool)) (Memory, error)
	// Export returns a handle of the whole slab, owned by the caller, by which another process can import it.
	// Afterwards only this process can write it. It returns the errors of [Memory.Export] and [Memory.Freeze].
	Export() (Handle, error)
	// Close releases the mapping, at the latest when its current use ends. A second Close returns nil.
	Close() error
}

// Slabber is a device that allocates slabs.
type Slabber interface {
	Device
	// AllocSlab returns an owned, zeroed slab. It returns the errors of Alloc.
	AllocSlab(bytes int64) (Slab, error)
	// ImportSlab maps a slab of another process read-only. It borrows h, validates it as Import does, and returns the
	// errors of Import.
	ImportSlab(h Handle) (Slab, error)
	// SlabOf returns the slab of a memory, borrowed; nil for other memory.
	SlabOf(m Memory) Slab
}

// UninitializedAllocator is a device that can allocate memory without zeroing it.
type UninitializedAllocator interface {
	Device
	// AllocUninitialized is Alloc of memory that may hold other bytes than zeros, such as data of this process in
	// memory that was closed since. It is for callers that write all of it.
	AllocUninitialized(bytes int64) (Memory, error)
}
