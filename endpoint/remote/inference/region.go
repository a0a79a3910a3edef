package inference

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
)

// Limits of regions. Each region uses a descriptor or a mapping.
const (
	maxRegions     = 1024
	maxRegionBytes = 256 // of a name
)

// regionMemory is memory of a client.
type regionMemory interface {
	// readAt and writeAt copy between p and the memory at the offset, which must be within the region. They return an
	// error if the client has removed the memory.
	readAt(p []byte, at int64) error
	writeAt(p []byte, at int64) error
	close() error
}

// region is shared memory registered by a client.
type region struct {
	name string
	// key and offset belong to system shared memory, device to CUDA memory. bytes is the size.
	cuda   bool
	key    string
	offset uint64
	device int64
	bytes  int64
	memory regionMemory

	users int  // requests that use it
	gone  bool // unregistered while in use
}

// regions holds the registered regions. Both kinds share one set of names.
type regions struct {
	mu     sync.Mutex
	byName map[string]*region
}

// checkNew returns an error if a region with this name and size cannot be registered. It is called before the memory is
// opened.
func (rs *regions) checkNew(name string, bytes uint64) error {
	switch {
	case name == "" || len(name) > maxRegionBytes:
		return fmt.Errorf("%w: the name of a region has 1 to %d bytes", ErrInvalid, maxRegionBytes)
	case bytes == 0 || bytes > math.MaxInt64:
		return fmt.Errorf("%w: a region of %d bytes", ErrInvalid, bytes)
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.checkFreeLocked(name)
}

func (rs *regions) checkFreeLocked(name string) error {
	if rs.byName[name] != nil {
		return fmt.Errorf("%w: shared memory region %q", ErrExists, name)
	}
	if len(rs.byName) >= maxRegions {
		return fmt.Errorf("%w: there are %d regions already: unregister some", ErrTooLarge, maxRegions)
	}
	return nil
}

// add registers a region and takes ownership of its memory, also on failure.
func (rs *regions) add(r *region) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if err := rs.checkFreeLocked(r.name); err != nil {
		_ = r.memory.close() // opened just before
		return err
	}
	if rs.byName == nil {
		rs.byName = make(map[string]*region)
	}
	rs.byName[r.name] = r
	return nil
}

// use acquires a region; the caller calls release. offset and bytes are the part of it that the client requests.
func (rs *regions) use(name string, offset, bytes int64) (*region, error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.byName[name]
	if r == nil {
		return nil, fmt.Errorf("%w: Unable to find shared memory region: '%s'", ErrNotFound, clip(name))
	}
	if offset < 0 || bytes < 0 || offset > r.bytes || bytes > r.bytes-offset {
		return nil, fmt.Errorf("%w: Invalid offset + byte size for shared memory region: '%s': it has %d bytes", ErrInvalid, name, r.bytes)
	}
	r.users++
	return r, nil
}

// release ends a use.
func (rs *regions) release(r *region) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if r.users--; r.users == 0 && r.gone {
		_ = r.memory.close() // best effort: the request is complete
	}
}

// remove unregisters a region, or all regions of a kind if name is empty. A region in use is closed after the last
// request.
func (rs *regions) remove(name string, cuda bool) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.byName {
		if r.cuda != cuda || name != "" && r.name != name {
			continue
		}
		delete(rs.byName, r.name)
		if r.gone = true; r.users == 0 {
			if err := r.memory.close(); err != nil {
				return err
			}
		}
	}
	return nil
}

// list returns the regions of a kind sorted by name; only the named one unless name is empty.
func (rs *regions) list(name string, cuda bool) ([]*region, error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if name != "" {
		r := rs.byName[name]
		if r == nil || r.cuda != cuda {
			return nil, fmt.Errorf("%w: Unable to find shared memory region: '%s'", ErrNotFound, clip(name))
		}
		return []*region{r}, nil
	}
	var list []*region
	for _, key := range slices.Sorted(maps.Keys(rs.byName)) {
		if r := rs.byName[key]; r.cuda == cuda {
			list = append(list, r)
		}
	}
	return list, nil
}

// close unregisters all regions.
func (rs *regions) close() {
	_ = rs.remove("", false) // the process is about to exit
	_ = rs.remove("", true)
}
