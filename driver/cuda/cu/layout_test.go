package cu

// layout is the size, the alignment and the fields' offsets of a record, in bytes.
type layout struct {
	Size, Align uintptr
	Fields      map[string]uintptr
}
