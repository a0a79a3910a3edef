//go:build !linux

package transfer

// RestrictToReading does nothing: only Linux has host memory that is passed by descriptors.
func (out *Export) RestrictToReading() error { return nil }
