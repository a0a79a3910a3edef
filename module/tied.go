package module

import (
	"slices"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// Aliases returns the groups of tied names: those whose tensors are the same elements of the same storage, in the order of
// the state dict. Names that are not tied are in no group. Tensors without elements are never tied, and neither are views
// that overlap only in part.
func (sd *StateDict) Aliases() [][]string {
	var groups [][]string
	for _, group := range sd.aliases() {
		names := make([]string, len(group))
		for i, at := range group {
			names[i] = sd.names[at]
		}
		groups = append(groups, names)
	}
	return groups
}

// aliases is Aliases by position.
func (sd *StateDict) aliases() [][]int {
	type place struct {
		storage *tensor.Storage
		offset  int64
		dtype   tensor.DType
	}
	first := make(map[place]int, len(sd.tensors))
	// others are tensors that begin where an earlier one does; usually there are none.
	others := map[int][]int{}
	for i, t := range sd.tensors {
		if t.NumElements() == 0 {
			continue
		}
		spec := t.Spec()
		at := place{t.Storage(), spec.ByteOffset, spec.DType}
		if j, taken := first[at]; taken {
			others[j] = append(others[j], i)
			continue
		}
		first[at] = i
	}
	var groups [][]int
	for i, rest := range others {
		groups = append(groups, sd.split(append([]int{i}, rest...))...)
	}
	slices.SortFunc(groups, func(a, b []int) int { return a[0] - b[0] })
	return groups
}

// split divides tensors that begin at the same byte into groups of equal specs, and drops groups of one.
func (sd *StateDict) split(candidates []int) [][]int {
	var groups [][]int
	for len(candidates) > 1 {
		spec := sd.tensors[candidates[0]].Spec()
		var same, rest []int
		for _, i := range candidates {
			if sd.tensors[i].Spec().Equal(spec) {
				same = append(same, i)
			} else {
				rest = append(rest, i)
			}
		}
		if len(same) > 1 {
			groups = append(groups, same)
		}
		candidates = rest
	}
	return groups
}
