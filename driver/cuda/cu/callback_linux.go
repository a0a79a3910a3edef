//go:build linux && (amd64 || arm64) && !nocuda

package cu

import (
	"fmt"

	"github.com/ebitengine/purego"
)

// NewCallback makes a C function of a Go function, for the callback types such as [HostFn]. fn takes and gives what
// fits in a word: handles, integers, pointers to records. A process can make 2000 of them and they are never freed, so
// a program makes one of a kind and tells calls apart by the word userData. The driver calls it on a thread of its own;
// fn must not panic and, for most callbacks, must not call the driver.
func NewCallback(fn any) (callback uintptr, err error) {
	defer func() {
		if p := recover(); p != nil {
			callback, err = 0, fmt.Errorf("cuda callback of type %T: %v", fn, p)
		}
	}()
	return purego.NewCallback(fn), nil
}
