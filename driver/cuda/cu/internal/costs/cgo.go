package main

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

typedef uint64_t w;
typedef struct { char b[64]; } handle64;

static int call0(void *f) { return ((int (*)(void))f)(); }
static int call1(void *f, w a) { return ((int (*)(w))f)(a); }
static int call2(void *f, w a, w b) { return ((int (*)(w, w))f)(a, b); }
static int call3(void *f, w a, w b, w c) { return ((int (*)(w, w, w))f)(a, b, c); }
static int call4(void *f, w a, w b, w c, w d) { return ((int (*)(w, w, w, w))f)(a, b, c, d); }
static int call5(void *f, w a, w b, w c, w d, w e) { return ((int (*)(w, w, w, w, w))f)(a, b, c, d, e); }
static int call6(void *f, w a, w b, w c, w d, w e, w g) { return ((int (*)(w, w, w, w, w, w))f)(a, b, c, d, e, g); }
static int call7(void *f, w a, w b, w c, w d, w e, w g, w h)
{
	return ((int (*)(w, w, w, w, w, w, w))f)(a, b, c, d, e, g, h);
}
static int call8(void *f, w a, w b, w c, w d, w e, w g, w h, w i)
{
	return ((int (*)(w, w, w, w, w, w, w, w))f)(a, b, c, d, e, g, h, i);
}
static int call9(void *f, w a, w b, w c, w d, w e, w g, w h, w i, w j)
{
	return ((int (*)(w, w, w, w, w, w, w, w, w))f)(a, b, c, d, e, g, h, i, j);
}
static int call10(void *f, w a, w b, w c, w d, w e, w g, w h, w i, w j, w k)
{
	return ((int (*)(w, w, w, w, w, w, w, w, w, w))f)(a, b, c, d, e, g, h, i, j, k);
}
static int call11(void *f, w a, w b, w c, w d, w e, w g, w h, w i, w j, w k, w l)
{
	return ((int (*)(w, w, w, w, w, w, w, w, w, w, w))f)(a, b, c, d, e, g, h, i, j, k, l);
}
static int callHandle(void *f, w a, handle64 h, unsigned flags) { return ((int (*)(w, handle64, unsigned))f)(a, h, flags); }
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// cgoCalls returns the calls through cgo, in the order of rows. Like bindings that find the driver at run time, they call
// a pointer of dlsym in a static C function.
func cgoCalls(library string) ([]func() int32, error) {
	path := C.CString(library)
	defer C.free(unsafe.Pointer(path))
	handle := C.dlopen(path, C.RTLD_NOW)
	if handle == nil {
		return nil, fmt.Errorf("dlopen %s: %s", library, C.GoString(C.dlerror()))
	}
	f := make([]unsafe.Pointer, len(rows))
	for i, row := range rows {
		name := C.CString(row.symbol)
		f[i] = C.dlsym(handle, name)
		C.free(unsafe.Pointer(name))
		if f[i] == nil {
			return nil, fmt.Errorf("%s is missing", row.symbol)
		}
	}
	h := C.handle64{}
	h.b[0] = 5
	return []func() int32{
		func() int32 { return int32(C.call0(f[0])) },
		func() int32 { return int32(C.call1(f[1], 1)) },
		func() int32 { return int32(C.call2(f[2], 1, 2)) },
		func() int32 { return int32(C.call3(f[3], 1, 2, 3)) },
		func() int32 { return int32(C.call4(f[4], 1, 2, 3, 4)) },
		func() int32 { return int32(C.call5(f[5], 1, 2, 3, 4, 5)) },
		func() int32 { return int32(C.call6(f[6], 1, 2, 3, 4, 5, 6)) },
		func() int32 { return int32(C.call7(f[7], 1, 2, 3, 4, 5, 6, 7)) },
		func() int32 { return int32(C.call8(f[8], 1, 2, 0, 4, 0, 6, 0, 0)) },
		func() int32 { return int32(C.call9(f[9], 0, 0, 0, 4, 0, 0, 7, 0, 9)) },
		func() int32 { return int32(C.call10(f[10], 1, 2, 3, 4, 5, 6, 7, 8, 9, 0)) },
		func() int32 { return int32(C.call11(f[11], 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0)) },
		func() int32 { return int32(C.callHandle(f[12], 1, h, 1)) },
		// The floor of a call in a context is one call.
		func() int32 { return int32(C.call1(f[13], 1)) },
		func() int32 { return int32(C.call11(f[14], 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0)) },
	}, nil
}
