package ccall

// FrameCopy is a call with at most 8 words, one of which is the address of a copy of a record of 64 bytes. AAPCS64 passes
// a record of more than 16 bytes by value in this way. On amd64 the words of such a record are on the stack, so
// [Frame16] passes it.
type FrameCopy struct {
	// Fn is the address of the C function. It must not be 0.
	Fn uintptr
	// A holds the words of the arguments. The call replaces A[At] by the address of the copy.
	A [8]uintptr
	// At is the index of the record among the arguments.
	At uintptr
	// Record is the content of the record. The function may change its copy.
	Record [8]uintptr
}

// GuardedCopy is a call with a copy of a record between two others.
type GuardedCopy struct {
	FrameCopy
	Guard
}
