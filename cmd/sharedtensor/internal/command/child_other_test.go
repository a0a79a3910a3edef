//go:build !linux

package command

// actAsChild does nothing: tests start child processes only on Linux.
func actAsChild() {}
