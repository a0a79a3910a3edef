//go:build linux && arm64 && cudapurego && !nocuda

package ccall

import "unsafe"

// Call calls the function and returns its result. It allocates the copy.
func (f *FrameCopy) Call() int32 {
	record := new([8]uintptr)
	*record = f.Record
	words := Frame16{Fn: f.Fn}
	copy(words.A[:], f.A[:])
	return callWithRecord(&words, f.At, uintptr(unsafe.Pointer(record)))
}

// callWithRecord keeps the record alive during the call.
//
//go:uintptrescapes
//go:noinline
func callWithRecord(words *Frame16, at, record uintptr) int32 {
	words.A[at] = record
	return words.Call()
}

// Call calls Push, the function and Pop on one thread, and returns the function's result.
func (g *GuardedCopy) Call() int32 {
	if r := g.enter(); r != 0 {
		return r
	}
	r := g.FrameCopy.Call()
	g.leave()
	return r
}
