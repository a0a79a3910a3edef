package inference

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
)

// Limits of regions. Each region uses a descriptor or a mapping.
const (
	maxRegions     = 1024
	maxOfOwner     = 256 // of one identity
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

// regionName is the name of a region among those of one identity.
type regionName struct{ owner, name string }

// region is shared memory registered by a client.
type region struct {
	regionName
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

// regions holds the registered regions. Each identity has its own names, which both kinds share.
type regions struct {
	mu     sync.Mutex
	byName map[regionName]*region
	counts map[string]int // by owner
}

// checkNew returns an error if a region with this name and size cannot be registered. It is called before the memory is
// opened.
func (rs *regions) checkNew(name regionName, bytes uint64) error {
	switch {
	case name.name == "" || len(name.name) > maxRegionBytes:
		return fmt.Errorf("%w: the name of a region has 1 to %d bytes", ErrInvalid, maxRegionBytes)
	case bytes == 0 || bytes > math.MaxInt64:
		return fmt.Errorf("%w: a region of %d bytes", ErrInvalid, bytes)
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.checkFreeLocked(name)
}

func (rs *regions) checkFreeLocked(name regionName) error {
	if rs.byName[name] != nil {
		return fmt.Errorf("%w: shared memory region %q", ErrExists, name.name)
	}
	if len(rs.byName) >= maxRegions || rs.counts[name.owner] >= maxOfOwner {
		return fmt.Errorf("%w: there are %d regions already, %d of this client: unregister some", ErrTooLarge, len(rs.byName), rs.counts[name.owner])
	}
	return nil
}

// add registers a region and takes ownership of its memory, also on failure.
func (rs *regions) add(r *region) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if err := rs.checkFreeLocked(r.regionName); err != nil {
		_ = r.memory.close() // opened just before
		return err
	}
	if rs.byName == nil {
		rs.byName, rs.counts = make(map[regionName]*region), make(map[string]int)
	}
	rs.byName[r.regionName] = r
	rs.counts[r.owner]++
	return nil
}

// use acquires a region; the caller calls release. offset and bytes are the part of it that the client requests.
func (rs *regions) use(name regionName, offset, bytes int64) (*region, error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.byName[name]
	if r == nil {
		return nil, fmt.Errorf("%w: Unable to find shared memory region: '%s'", ErrNotFound, clip(name.name))
	}
	if offset < 0 || bytes < 0 || offset > r.bytes || bytes > r.bytes-offset {
		return nil, fmt.Errorf("%w: Invalid offset + byte size for shared memory region: '%s': it has %d bytes", ErrInvalid, name.name, r.bytes)
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

// remove unregisters a region of an identity, or all its regions of a kind if the name is empty. A region in use is closed
// after the last request.
func (rs *regions) remove(name regionName, cuda bool) error {
	return rs.removeAll(func(r *region) bool {
		return r.cuda == cuda && r.owner == name.owner && (name.name == "" || r.name == name.name)
	})
}

func (rs *regions) removeAll(which func(*region) bool) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.byName {
		if !which(r) {
			continue
		}
		delete(rs.byName, r.regionName)
		if rs.counts[r.owner]--; rs.counts[r.owner] == 0 {
			delete(rs.counts, r.owner)
		}
		if r.gone = true; r.users == 0 {
			if err := r.memory.close(); err != nil {
				return err
			}
		}
	}
	return nil
}

// list returns the regions of a kind of an identity, sorted by name; only the named one unless the name is empty.
func (rs *regions) list(name regionName, cuda bool) ([]*region, error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if name.name != "" {
		r := rs.byName[name]
		if r == nil || r.cuda != cuda {
			return nil, fmt.Errorf("%w: Unable to find shared memory region: '%s'", ErrNotFound, clip(name.name))
		}
		return []*region{r}, nil
	}
	var list []*region
	for _, r := range rs.byName {
		if r.owner == name.owner && r.cuda == cuda {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b *region) int { return cmp.Compare(a.name, b.name) })
	return list, nil
}

// close unregisters all regions.
func (rs *regions) close() {
	_ = rs.removeAll(func(*region) bool { return true }) // the process is about to exit
}
