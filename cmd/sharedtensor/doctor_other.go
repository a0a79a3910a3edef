//go:build !linux

package main

// shm has nothing to look at here.
func shm() (finding, bool) { return finding{}, false }
