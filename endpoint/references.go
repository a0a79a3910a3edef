package endpoint

import (
	"maps"
	"slices"
)

// references are the live references of one process, by the object.
type references struct {
	byID  map[string]map[*reference]struct{}
	count int
}

func (s *references) add(r *reference) {
	if s.byID == nil {
		s.byID = map[string]map[*reference]struct{}{}
	}
	same := s.byID[r.id]
	if same == nil {
		same = map[*reference]struct{}{}
		s.byID[r.id] = same
	}
	same[r] = struct{}{}
	s.count++
}

// remove takes a reference out, if it is there.
func (s *references) remove(r *reference) {
	same := s.byID[r.id]
	if _, there := same[r]; !there {
		return
	}
	s.count--
	if delete(same, r); len(same) == 0 {
		delete(s.byID, r.id)
	}
}

// of lists the references to an object.
func (s *references) of(id string) []*reference {
	return slices.Collect(maps.Keys(s.byID[id]))
}

// all lists all references.
func (s *references) all() []*reference {
	list := make([]*reference, 0, s.count)
	for _, same := range s.byID {
		for r := range same {
			list = append(list, r)
		}
	}
	return list
}

// end ends those that were given back by id, which are given by token with their objects, and takes them out.
func (s *references) end(spent map[uint64]string) {
	objects := map[string]struct{}{}
	for _, id := range spent {
		objects[id] = struct{}{}
	}
	for id := range objects {
		for r := range s.byID[id] {
			if r.isOneOf(spent) && r.end(errReleased) {
				s.remove(r)
			}
		}
	}
}
