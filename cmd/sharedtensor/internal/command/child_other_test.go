//go:build !linux

package command

// actAsChild does nothing: what tests start are programs for Linux.
func actAsChild() {}
