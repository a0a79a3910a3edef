package driver

import (
	"fmt"
	"os"
)

// HandleKind is the way in which memory is passed to another process.
type HandleKind string

const (
	// Memfd is host memory: the descriptor of a sealed memfd.
	Memfd HandleKind = "memfd"
	// CUDAFD is CUDA virtual memory: a descriptor from cuMemExportToShareableHandle(POSIX_FD).
	CUDAFD HandleKind = "cuda-fd"
	// CUDAIPC is memory of cuMemAlloc: the 64 bytes of cuIpcGetMemHandle.
	CUDAIPC HandleKind = "cuda-ipc"
	// CUDAFabric is CUDA virtual memory reachable over an NVLink fabric: a 64-byte CUmemFabricHandle.
	CUDAFabric HandleKind = "cuda-fabric"
)

// HasFile reports whether handles of this kind carry a descriptor.
func (k HandleKind) HasFile() bool { return k == Memfd || k == CUDAFD }

// BlobBytes returns the exact length of Blob for handles of this kind; 0 for kinds with a descriptor, -1 for an unknown
// kind.
func (k HandleKind) BlobBytes() int {
	switch k {
	case Memfd, CUDAFD:
		return 0
	case CUDAIPC, CUDAFabric:
		return 64
	}
	return -1
}

// Handle describes memory of one process that another can import. Its fields are claims that the importing device
// verifies.
type Handle struct {
	// Kind is the way to import the memory.
	Kind HandleKind
	// Device is the device that holds the memory. Ordinals have no meaning in another process.
	Device UUID
	// Bytes is the size of the memory.
	Bytes int64
	// Offset is the byte offset of the memory in the allocation of Blob or File, which has at least Offset + Bytes
	// bytes.
	Offset int64
	// Blob is the driver's opaque handle, for kinds without a descriptor.
	Blob []byte
	// File is the descriptor, for kinds that have one. The owner of the handle owns it.
	File *os.File
}

// Validate checks the handle without the object: known kind, consistent sizes, a descriptor or a blob according to the
// kind. Its errors are [ErrHandle]; an unknown kind is an [UnsupportedError].
func (h Handle) Validate() error {
	want := h.Kind.BlobBytes()
	switch {
	case want < 0:
		return &UnsupportedError{Feature: fmt.Sprintf("handle kind %q", string(h.Kind)), Reason: "this version does not know it"}
	case h.Bytes < 0 || h.Offset < 0 || h.Offset+h.Bytes < h.Offset:
		return fmt.Errorf("%w: %d bytes at offset %d", ErrHandle, h.Bytes, h.Offset)
	case len(h.Blob) != want:
		return fmt.Errorf("%w: kind %s carries %d opaque bytes, not %d", ErrHandle, h.Kind, want, len(h.Blob))
	case h.Kind.HasFile() && h.File == nil:
		return fmt.Errorf("%w: kind %s needs a descriptor", ErrHandle, h.Kind)
	case !h.Kind.HasFile() && h.File != nil:
		return fmt.Errorf("%w: kind %s carries no descriptor", ErrHandle, h.Kind)
	}
	return nil
}

// Close closes the descriptor, if any. It does not affect the memory.
func (h Handle) Close() error {
	if h.File == nil {
		return nil
	}
	return h.File.Close()
}
