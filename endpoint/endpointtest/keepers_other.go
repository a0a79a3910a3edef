//go:build !linux

package endpointtest

// endListeners does nothing: keepers run on Linux only.
func endListeners(string) {}
