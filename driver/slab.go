package driver

// Slab is mapped memory that is used by one [Memory] after the other: pages that are there and mapped cost nothing,
// fresh ones most of what a tensor costs. What a slab is used for may be seen by whoever had it before, who may have it
// mapped still, so it stays among those who may see that. Its methods are safe for concurrent use.
type Slab interface {
	// Bytes is how much memory it is.
	Bytes() int64
	// Use returns owned memory of the first bytes of the slab, as they are: those of an allocated slab were zeros once,
	// and are what earlier users left. A slab has one user at a time, else it fails with [ErrBusy]; more than Bytes is
	// [ErrInvalid]. done is called once, on any goroutine, when the memory was closed and its last pin is gone, and must
	// not refer to the memory. clean is true where nobody in this process can have any use of it: it is false after
	// [Memory.Export] or a [Sealer.Seal], and where the memory was forgotten and never closed. What is not clean should
	// not be used again.
	Use(bytes int64, done func(clean bool)) (Memory, error)
	// Export returns a handle of the whole slab, owned by the caller, with which another process can import it. From
	// then on nobody but this process can write it, and this process always can. Errors are those of [Memory.Export]
	// and [Freezer.Freeze].
	Export() (Handle, error)
	// Close gives the mapping up, or has that done when its user ends. A second Close is nil.
	Close() error
}

// Slabber is a device that has slabs.
type Slabber interface {
	Device
	// AllocSlab returns an owned, zeroed slab. Errors are those of Alloc.
	AllocSlab(bytes int64) (Slab, error)
	// ImportSlab maps a slab of another process, read-only. It borrows h, and trusts it as little as Import does, whose
	// errors it has.
	ImportSlab(h Handle) (Slab, error)
}

// Slabbed is memory that may be of a slab.
type Slabbed interface {
	Memory
	// Slab is the slab that the memory is of, borrowed; nil for other memory.
	Slab() Slab
}

// UninitializedAllocator is a device that has memory which need not be zeroed.
type UninitializedAllocator interface {
	Device
	// AllocUninitialized is Alloc of memory whose bytes may be others than zeros: such as this process put into memory
	// that was given back since. It is for those who write all of it.
	AllocUninitialized(bytes int64) (Memory, error)
}
