//go:build linux && (amd64 || arm64) && !nocuda

package cu

import (
	"fmt"

	"github.com/ebitengine/purego"
)

// NewCallback returns a C function that calls fn, for callback types such as [HostFn]. Parameters and the result of fn
// must fit in a word: handles, integers, pointers to records. A process can make at most 2000 callbacks, which are
// never freed, so make one for each purpose and distinguish calls by userData. The driver calls it on its own thread.
// fn must not panic and, for most callbacks, must not call the driver.
func NewCallback(fn any) (callback uintptr, err error) {
	defer func() {
		if p := recover(); p != nil {
			callback, err = 0, fmt.Errorf("cuda callback of type %T: %v", fn, p)
		}
	}()
	return purego.NewCallback(fn), nil
}
