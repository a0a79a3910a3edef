package module

import (
	"hash/maphash"
	"slices"
)

// nameIndex maps names to positions in a list. Building it takes less than half the time of building a map, which
// matters when attaching a model of thousands of tensors, and the names are stored once, in the list. The zero value is
// empty.
type nameIndex struct {
	table []uint32 // position + 1, or 0; open addressing, at most half full
	used  int
	// shared: another index uses the table too; it is copied before a change.
	shared bool
}

// nameSeed makes places in the table unpredictable for peers, which choose the names.
var nameSeed = maphash.MakeSeed()

// indexNames builds the index of a list of names. It returns the position of the first duplicate name, or -1.
func indexNames(names []string) (x nameIndex, twice int) {
	x.grow(len(names))
	for i, name := range names {
		slot, found := x.slot(names, name)
		if found {
			return x, i
		}
		x.table[slot] = uint32(i + 1)
	}
	x.used = len(names)
	return x, -1
}

// find returns the position of a name in the indexed list.
func (x *nameIndex) find(names []string, name string) (int, bool) {
	if x.used == 0 {
		return 0, false
	}
	slot, found := x.slot(names, name)
	return int(x.table[slot]) - 1, found
}

// add adds the last name of the list, which is not in the index.
func (x *nameIndex) add(names []string) {
	if x.shared {
		x.table, x.shared = slices.Clone(x.table), false
	}
	if 2*len(names) > len(x.table) {
		x.grow(2 * len(names))
		for i, name := range names[:len(names)-1] {
			slot, _ := x.slot(names, name)
			x.table[slot] = uint32(i + 1)
		}
	}
	slot, _ := x.slot(names, names[len(names)-1])
	x.table[slot] = uint32(len(names))
	x.used = len(names)
}

// grow allocates an empty table for n names.
func (x *nameIndex) grow(n int) {
	size := 8
	for size < 2*n {
		size *= 2
	}
	x.table = make([]uint32, size)
}

// slot returns the slot of a name, or the free slot for it.
func (x *nameIndex) slot(names []string, name string) (slot int, found bool) {
	mask := len(x.table) - 1
	for slot = int(maphash.String(nameSeed, name)) & mask; ; slot = (slot + 1) & mask {
		switch at := x.table[slot]; {
		case at == 0:
			return slot, false
		case names[at-1] == name:
			return slot, true
		}
	}
}
