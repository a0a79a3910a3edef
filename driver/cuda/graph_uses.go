package cuda

import (
	"fmt"
	"os"
	"slices"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// graphUses are the objects that the work of a graph uses, by node. Replacing the parameters of a node drops the objects
// of the old ones, so the size depends on the graph alone. Two graphs can only replace each other's parameters if their
// nodes were added in the same order. Their nodes then have equal numbers.
type graphUses struct {
	// number is the index in nodes of each node that was added by a method. It is shared by the copies of a graphUses.
	number map[cu.GraphNode]int
	// nodes has the objects of each numbered node. Element 0 has those of work that was captured, whose nodes are unknown.
	nodes [][]*lifetime
	// disabled are the numbers of nodes that do nothing.
	disabled map[int]bool
}

// capture adds objects of captured work.
func (u *graphUses) capture(used []*lifetime) {
	u.grow(0)
	for _, l := range used {
		if !slices.Contains(u.nodes[0], l) {
			u.nodes[0] = append(u.nodes[0], l)
		}
	}
}

// add numbers a new node and sets its objects.
func (u *graphUses) add(n cu.GraphNode, used []*lifetime) {
	u.grow(0)
	if u.number == nil {
		u.number = map[cu.GraphNode]int{}
	}
	u.number[n] = len(u.nodes)
	u.nodes = append(u.nodes, used)
}

// set replaces the objects of the node with the number.
func (u *graphUses) set(number int, used []*lifetime) {
	u.grow(number)
	u.nodes[number] = used
}

func (u *graphUses) grow(number int) {
	for len(u.nodes) <= number {
		u.nodes = append(u.nodes, nil)
	}
}

// enable records whether the node with the number does its work.
func (u *graphUses) enable(number int, enabled bool) {
	switch {
	case enabled:
		delete(u.disabled, number)
	case u.disabled == nil:
		u.disabled = map[int]bool{number: true}
	default:
		u.disabled[number] = true
	}
}

// clone returns a copy for an executable graph. It has no numbers of nodes: those of the graph apply.
func (u *graphUses) clone() graphUses { return graphUses{nodes: slices.Clone(u.nodes)} }

// all returns the objects that the next launch uses, each once.
func (u *graphUses) all() []*lifetime {
	var all []*lifetime
	seen := map[*lifetime]bool{}
	for number, used := range u.nodes {
		if u.disabled[number] {
			continue
		}
		for _, l := range used {
			if !seen[l] {
				seen[l] = true
				all = append(all, l)
			}
		}
	}
	return all
}

// lives returns the lifetimes of objects.
func lives(used []*resource) []*lifetime {
	all := make([]*lifetime, 0, len(used))
	for _, r := range used {
		if !slices.Contains(all, r.life) {
			all = append(all, r.life)
		}
	}
	return all
}

// useAll keeps the objects from being released until done is called. It fails if one of them is closed.
func useAll(all []*lifetime) (done func(), err error) {
	for i, l := range all {
		if err := l.use(); err != nil {
			endUses(all[:i])
			return nil, fmt.Errorf("an object that the graph uses: %w", os.ErrClosed)
		}
	}
	return func() { endUses(all) }, nil
}

func endUses(all []*lifetime) {
	for _, l := range all {
		l.done()
	}
}
