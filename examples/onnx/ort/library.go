//go:build linux

// Package ort calls ONNX Runtime's C API from Go without cgo. It covers what a worker needs: sessions whose weights are
// memory of the caller, and runs on tensors of the caller.
//
// The library is a table of functions. Their positions are fixed: releases only append to it. Package ort requests
// version 17 of the table, which ONNX Runtime 1.17 and newer have.
//
// The process is killed if a session writes to weights that are mapped read-only. Sessions do not write to initializers.
package ort

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

// apiVersion is the version of the function table.
const apiVersion = 17

// function is a position in the function table.
type function int

const (
	getErrorMessage                function = 2
	createEnv                      function = 3
	createSession                  function = 7
	createSessionFromArray         function = 8
	run                            function = 9
	createSessionOptions           function = 10
	setOptimizedModelFilePath      function = 11
	disableCPUMemArena             function = 19
	setSessionGraphOptimization    function = 23
	setIntraOpNumThreads           function = 24
	setInterOpNumThreads           function = 25
	sessionGetInputCount           function = 30
	sessionGetOutputCount          function = 31
	sessionGetInputName            function = 36
	sessionGetOutputName           function = 37
	createTensorWithData           function = 49
	getTensorMutableData           function = 51
	getTensorElementType           function = 60
	getDimensionsCount             function = 61
	getDimensions                  function = 62
	getTensorTypeAndShape          function = 65
	createCPUMemoryInfo            function = 69
	allocatorFree                  function = 76
	getAllocatorWithDefaultOptions function = 78
	releaseStatus                  function = 93
	releaseSession                 function = 95
	releaseValue                   function = 96
	releaseTensorTypeAndShapeInfo  function = 99
	releaseSessionOptions          function = 100
	sessionGetModelMetadata        function = 111
	modelMetadataLookupCustomMap   function = 116
	releaseModelMetadata           function = 118
	addSessionConfigEntry          function = 130
	addInitializer                 function = 150
	addExternalInitializers        function = 210
	functions                               = 211
)

// Library is a loaded ONNX Runtime. It cannot be unloaded. Its methods are safe for concurrent use.
type Library struct {
	// Version is the release, such as "1.32.0".
	Version string

	table     [functions]uintptr
	env       uintptr
	memory    uintptr // describes CPU memory
	allocator uintptr // owns texts that the library returns
}

// Open loads libonnxruntime.so from path. It returns an error if the library is too old.
func Open(path string) (*Library, error) {
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("loading ONNX Runtime: %w", err)
	}
	getBase, err := purego.Dlsym(handle, "OrtGetApiBase")
	if err != nil {
		return nil, fmt.Errorf("%s is not ONNX Runtime: %w", path, err)
	}
	base, _, _ := purego.SyscallN(getBase)
	if base == 0 {
		return nil, errors.New("ONNX Runtime has no function table")
	}
	entries := (*[2]uintptr)(pointer(base)) // GetApi and GetVersionString
	version, _, _ := purego.SyscallN(entries[1])
	l := &Library{Version: text(version)}
	table, _, _ := purego.SyscallN(entries[0], apiVersion)
	if table == 0 {
		return nil, fmt.Errorf("ONNX Runtime %s is too old: version 1.%d is required", l.Version, apiVersion)
	}
	l.table = *(*[functions]uintptr)(pointer(table))
	name := cString("sharedtensor")
	if err := l.call(createEnv, warnings, uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(&l.env))); err != nil {
		return nil, err
	}
	const deviceAllocator, defaultMemory = 0, 0
	if err := l.call(createCPUMemoryInfo, deviceAllocator, defaultMemory, uintptr(unsafe.Pointer(&l.memory))); err != nil {
		return nil, err
	}
	return l, l.call(getAllocatorWithDefaultOptions, uintptr(unsafe.Pointer(&l.allocator)))
}

// warnings is the level of the library's log on standard error.
const warnings = 2

// call calls a function that returns a status and converts the status to an error. Pointers are converted to uintptr in the
// argument list, so that their memory escapes to the heap and stays in place during the call.
//
//go:uintptrescapes
func (l *Library) call(f function, args ...uintptr) error {
	status, _, _ := purego.SyscallN(l.table[f], args...)
	if status == 0 {
		return nil
	}
	message, _, _ := purego.SyscallN(l.table[getErrorMessage], status)
	err := errors.New("ONNX Runtime: " + text(message))
	l.release(releaseStatus, status)
	return err
}

// release calls a function that frees an object; 0 is ignored.
func (l *Library) release(f function, object uintptr) {
	if object != 0 {
		purego.SyscallN(l.table[f], object)
	}
}

// takeText returns a text that the library allocated, and frees it.
func (l *Library) takeText(p uintptr) (string, error) {
	s := text(p)
	if p == 0 {
		return "", nil
	}
	return s, l.call(allocatorFree, l.allocator, p)
}

// pointer returns an address that the library returned as a pointer. The memory does not belong to Go.
func pointer(p uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

// text copies a C string.
func text(p uintptr) string {
	if p == 0 {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(pointer(p)), n))
}

// cString returns s with a final 0.
func cString(s string) []byte { return append([]byte(s), 0) }

// cStrings returns an array of C strings, which stay in place until the pinner unpins them.
func cStrings(pinner *runtime.Pinner, texts []string) []uintptr {
	array := make([]uintptr, len(texts))
	for i, s := range texts {
		b := cString(s)
		pinner.Pin(&b[0])
		array[i] = uintptr(unsafe.Pointer(&b[0]))
	}
	return array
}
