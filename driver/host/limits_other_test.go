//go:build !linux

package host

// runLimited does nothing: the limits are Linux's.
func runLimited() {}
