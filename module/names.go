package module

import (
	"hash/maphash"
	"slices"
)

// nameIndex finds the position of a name in a list of names. It takes less than half the time of a map to build, which
// is a good part of what attaching to a model of thousands of tensors takes, and the names are kept once, in the list.
// The zero value is an index of no name.
type nameIndex struct {
	table []uint32 // a position + 1, or 0; open addressing, at most half full
	used  int
	// shared: the table is another index's too, and is copied before it is changed.
	shared bool
}

// nameSeed makes the places of names in the table unknown to peers, who choose the names.
var nameSeed = maphash.MakeSeed()

// indexNames makes the index of a list of names. It returns the position of the first name that is in the list twice,
// or -1.
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

// find returns the position of a name in the list that the index is of.
func (x *nameIndex) find(names []string, name string) (int, bool) {
	if x.used == 0 {
		return 0, false
	}
	slot, found := x.slot(names, name)
	return int(x.table[slot]) - 1, found
}

// add enters the last name of the list, which is not in the index.
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

// grow makes an empty table for n names.
func (x *nameIndex) grow(n int) {
	size := 8
	for size < 2*n {
		size *= 2
	}
	x.table = make([]uint32, size)
}

// slot is where a name is in the table, or where it would be.
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
