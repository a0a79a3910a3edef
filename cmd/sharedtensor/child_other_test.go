//go:build !linux

package main

// actAsChild does nothing: what tests start are programs for Linux.
func actAsChild() {}
