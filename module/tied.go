package module

import (
	"encoding/binary"
	"slices"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// Aliases returns the groups of tied names: those whose tensors are the same elements of the same storage, in the order
// of the state dict. Names that are not tied are in no group. Tensors without elements are never tied, and neither are
// views that overlap only in part.
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

// Aliases returns the groups of tied names of the state dict that m describes; see [StateDict.Aliases].
func (m *Manifest) Aliases() [][]string {
	var groups [][]string
	for _, group := range tiedGroups(len(m.Tensors), func(i int) (uint32, tensor.Spec) { return m.Tensors[i].Storage, m.Tensors[i].Spec }) {
		names := make([]string, len(group))
		for i, at := range group {
			names[i] = m.Tensors[at].Name
		}
		groups = append(groups, names)
	}
	return groups
}

// aliases is Aliases by position.
func (sd *StateDict) aliases() [][]int {
	return tiedGroups(len(sd.names), sd.place)
}

// tiedGroups finds the tensors that are the same elements of the same storage, in the order of their first.
func tiedGroups[S comparable](n int, at func(i int) (storage S, spec tensor.Spec)) [][]int {
	type place struct {
		storage S
		offset  int64
		dtype   tensor.DType
	}
	first := make(map[place]int, n)
	// others are tensors that begin where an earlier one does; usually there are none.
	others := map[int][]int{}
	for i := range n {
		storage, spec := at(i)
		if empty(spec.Shape) {
			continue
		}
		p := place{storage, spec.ByteOffset, spec.DType}
		if j, taken := first[p]; taken {
			others[j] = append(others[j], i)
			continue
		}
		first[p] = i
	}
	var groups [][]int
	for i, rest := range others {
		groups = append(groups, splitBySpec(append([]int{i}, rest...), at)...)
	}
	slices.SortFunc(groups, func(a, b []int) int { return a[0] - b[0] })
	return groups
}

// empty reports whether a tensor of the shape has no elements.
func empty(shape tensor.Shape) bool { return slices.Contains(shape, 0) }

// splitBySpec divides tensors that begin at the same byte into groups of equal specs, and drops groups of one.
func splitBySpec[S any](candidates []int, at func(i int) (S, tensor.Spec)) [][]int {
	same := map[string][]int{} // by shape and strides, so that a peer's million views of one byte take a bounded time each
	for _, i := range candidates {
		_, spec := at(i)
		key := layoutKey(spec)
		same[key] = append(same[key], i)
	}
	var groups [][]int
	for _, group := range same {
		if len(group) > 1 {
			groups = append(groups, group)
		}
	}
	return groups
}

// layoutKey is equal for two specs of one data type and offset that are equal.
func layoutKey(spec tensor.Spec) string {
	b := binary.AppendUvarint(make([]byte, 0, 1+4*len(spec.Shape)), uint64(len(spec.Shape)))
	for _, n := range spec.Shape {
		b = binary.AppendVarint(b, n)
	}
	if !spec.Contiguous() {
		for _, n := range spec.Strides {
			b = binary.AppendVarint(b, n)
		}
	}
	return string(b)
}
