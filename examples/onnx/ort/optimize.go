//go:build linux

package ort

import (
	"errors"
	"unsafe"
)

// SaveOptimized reads the model in the file from, optimizes its graph, and writes it to the file to. A session of the
// result needs no optimizer, so it can use all weights in place. Level OptimizeAll depends on this machine's processor.
func (l *Library) SaveOptimized(from, to string, level Optimization) error {
	options, err := l.sessionOptions(Options{Optimize: level})
	defer l.release(releaseSessionOptions, options)
	if err != nil {
		return err
	}
	in, out := cString(from), cString(to)
	if err := l.call(setOptimizedModelFilePath, options, uintptr(unsafe.Pointer(&out[0]))); err != nil {
		return err
	}
	var session uintptr
	err = l.call(createSession, l.env, uintptr(unsafe.Pointer(&in[0])), options, uintptr(unsafe.Pointer(&session)))
	l.release(releaseSession, session)
	if err == nil && session == 0 {
		err = errors.New("ONNX Runtime returned no session")
	}
	return err
}
