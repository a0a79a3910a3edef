//go:build !linux

package inference

import "fmt"

func openSystemRegion(string, uint32, uint64, uint64) (regionMemory, error) {
	return nil, fmt.Errorf("%w: system shared memory needs Linux", ErrNotServed)
}
