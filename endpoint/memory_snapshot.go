package endpoint

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/sharedtensor/sharedtensor/cache"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// memoryUsages are the values of MemoryUsage in the order in which they are reported.
var memoryUsages = []MemoryUsage{MemoryModels, MemoryObjects, MemoryResults, MemoryTasks}

// memorySnapshot lists the storages that a server has at one moment. They are borrowed and may be closed meanwhile:
// only their names, sizes and devices are used.
type memorySnapshot struct {
	of       map[MemoryUsage][][]*tensor.Storage
	sessions map[uint64]*heldObjects // what sessions refer to
	cached   uint64                  // objects that the cache has
	names    map[*tensor.Storage]string
}

// heldObjects are a session's references: how many, the largest of them, and what they are on.
type heldObjects struct {
	refs     uint64
	largest  []message.Reference
	storages [][]*tensor.Storage
}

// takeMemorySnapshot asks all parts of the server, one after the other.
func takeMemorySnapshot(s *Server) *memorySnapshot {
	v := &memorySnapshot{
		of: map[MemoryUsage][][]*tensor.Storage{}, sessions: map[uint64]*heldObjects{}, names: map[*tensor.Storage]string{},
	}
	for _, storages := range s.models.Storages() {
		v.add(MemoryModels, storages)
	}
	cached := map[*engine.Result]struct{}{}
	s.engine.Results.Each(func(_ cache.Key, r *engine.Result) {
		cached[r] = struct{}{}
		v.add(MemoryResults, r.Payload.Storages)
	})
	s.engine.Objects.Each(func(obj *engine.Object) {
		v.add(MemoryObjects, obj.Result.Payload.Storages)
		if _, is := cached[obj.Result.Result]; is {
			v.cached++
		}
		bytes := uint64(obj.Result.Payload.Bytes())
		for session, h := range obj.Refs {
			of := v.sessions[session]
			if of == nil {
				of = new(heldObjects)
				v.sessions[session] = of
			}
			of.add(message.Reference{ID: obj.ID, Endpoint: obj.Endpoint, Refs: uint64(len(h.Tokens)), Bytes: bytes})
			of.storages = append(of.storages, obj.Result.Payload.Storages)
		}
	})
	s.engine.Tasks.EachResult(func(_ string, o *engine.Outcome) {
		v.add(MemoryTasks, o.Storages())
	})
	return v
}

func (v *memorySnapshot) add(use MemoryUsage, storages []*tensor.Storage) {
	if len(storages) > 0 {
		v.of[use] = append(v.of[use], storages)
	}
}

// name is one that storages over the same memory have in common, where the system can tell.
func (v *memorySnapshot) name(s *tensor.Storage) string {
	name, known := v.names[s]
	if known {
		return name
	}
	name = "storage " + strconv.FormatUint(s.ID(), 10)
	if m, can := s.Memory().(driver.Placed); can {
		if place, ok := m.Place(); ok {
			name = place.String()
		}
	}
	v.names[s] = name
	return name
}

// distinct shows visit each memory of the lists once, but those that seen has; it adds them to seen.
func (v *memorySnapshot) distinct(lists [][]*tensor.Storage, seen map[string]struct{}, visit func(*tensor.Storage)) {
	for _, list := range lists {
		for _, s := range list {
			name := v.name(s)
			if _, twice := seen[name]; !twice {
				seen[name] = struct{}{}
				visit(s)
			}
		}
	}
}

// uses sums up what there is by device and purpose, and all of it.
func (v *memorySnapshot) uses() (list []message.MemoryUse, total uint64) {
	type key struct {
		device driver.UUID
		use    MemoryUsage
	}
	at, seen := map[key]int{}, map[string]struct{}{}
	for _, use := range memoryUsages {
		v.distinct(v.of[use], seen, func(s *tensor.Storage) {
			info := s.Memory().Device().Info()
			i, known := at[key{info.UUID, use}]
			if !known {
				i = len(list)
				at[key{info.UUID, use}] = i
				list = append(list, message.MemoryUse{Device: message.UUID(info.UUID), Type: int32(info.Type), Use: string(use)})
			}
			list[i].Bytes += uint64(s.Bytes())
			list[i].Storages++
			total += uint64(s.Bytes())
		})
	}
	slices.SortStableFunc(list, func(a, b message.MemoryUse) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), slices.Compare(a.Device[:], b.Device[:]))
	})
	return list, total
}

// mapped is the size of what lists of storages have together.
func (v *memorySnapshot) mapped(lists [][]*tensor.Storage) (bytes uint64) {
	v.distinct(lists, map[string]struct{}{}, func(s *tensor.Storage) { bytes += uint64(s.Bytes()) })
	return bytes
}

// How many objects are listed of one session, and of all together: where there are many sessions, each has fewer.
const (
	listedReferences    = 16
	listedReferencesAll = 4096
)

// add notes an object. Of many only the largest are kept.
func (h *heldObjects) add(r message.Reference) {
	h.refs += r.Refs
	h.largest = append(h.largest, r)
	if len(h.largest) >= 4*listedReferences {
		h.largest = largestReferences(h.largest, listedReferences)
	}
}

// largestReferences are the first n by size, in that order.
func largestReferences(list []message.Reference, n int) []message.Reference {
	slices.SortFunc(list, func(a, b message.Reference) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.ID, b.ID))
	})
	return list[:min(len(list), n)]
}
