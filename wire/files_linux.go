package wire

import "golang.org/x/sys/unix"

// sizeOf returns the size of the file behind a descriptor, or 0 if it has none.
func sizeOf(fd int) int64 {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0
	}
	return st.Size
}
