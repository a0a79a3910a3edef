//go:build !linux

package command

// shm has nothing to look at here.
func shm() (finding, bool) { return finding{}, false }
