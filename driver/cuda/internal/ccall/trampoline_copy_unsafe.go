//go:build linux && arm64 && !cudapurego && !nocuda

package ccall

import "unsafe"

var callCopyAddress, callGuardedCopyAddress uintptr

// Call calls the function and returns its result.
func (f *FrameCopy) Call() int32 { return cgocall(callCopyAddress, unsafe.Pointer(f)) }

// Call calls Push, the function and Pop on one thread, and returns the function's result.
func (g *GuardedCopy) Call() int32 { return cgocall(callGuardedCopyAddress, unsafe.Pointer(g)) }
