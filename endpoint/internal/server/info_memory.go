package server

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

// Purposes for which a server uses memory.
const (
	MemoryModels     = "models"
	MemoryPlacements = "placements"
	MemoryObjects    = "objects"
	MemoryResults    = "results"
	MemoryTasks      = "tasks"
)

// memoryUsages lists the purposes in order of reporting.
var memoryUsages = []string{MemoryModels, MemoryPlacements, MemoryObjects, MemoryResults, MemoryTasks}

// memorySnapshot lists a server's storages at one moment. They are borrowed and may be closed meanwhile, so only their
// names, sizes and devices are used.
type memorySnapshot struct {
	of       map[string][][]*tensor.Storage
	sessions map[uint64]*heldObjects // references, by session
	cached   uint64                  // objects in the cache
	names    map[*tensor.Storage]string
}

// heldObjects describes a session's references: their number, the largest of them, and their storages.
type heldObjects struct {
	refs     uint64
	largest  []message.Reference
	storages [][]*tensor.Storage
}

// takeMemorySnapshot queries all parts of the server in turn.
func takeMemorySnapshot(s *Server) *memorySnapshot {
	v := &memorySnapshot{
		of: map[string][][]*tensor.Storage{}, sessions: map[uint64]*heldObjects{}, names: map[*tensor.Storage]string{},
	}
	versions, placements := s.Models.Storages()
	for _, storages := range versions {
		v.add(MemoryModels, storages)
	}
	for _, storages := range placements {
		v.add(MemoryPlacements, storages)
	}
	cached := map[*engine.Result]struct{}{}
	s.Engine.Results.Each(func(_ cache.Key, r *engine.Result) {
		cached[r] = struct{}{}
		v.add(MemoryResults, r.Payload.Storages)
	})
	s.Engine.Objects.Each(func(obj *engine.Object) {
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
	s.Engine.Tasks.EachResult(func(_ string, o *engine.Outcome) {
		v.add(MemoryTasks, o.Storages())
	})
	return v
}

func (v *memorySnapshot) add(use string, storages []*tensor.Storage) {
	if len(storages) > 0 {
		v.of[use] = append(v.of[use], storages)
	}
}

// name returns a name that is common to all storages of the same memory, if the system can identify it.
func (v *memorySnapshot) name(s *tensor.Storage) string {
	name, known := v.names[s]
	if known {
		return name
	}
	name = "storage " + strconv.FormatUint(s.ID(), 10)
	if d, err := s.Memory().Describe(); err == nil && d.Place.Object != "" {
		name = d.Place.String()
	}
	v.names[s] = name
	return name
}

// distinct calls visit once for each memory in lists that is not in seen, and adds it to seen.
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

// uses returns the memory by device and purpose, and its sum.
func (v *memorySnapshot) uses() (list []message.MemoryUse, total uint64) {
	type key struct {
		device driver.UUID
		use    string
	}
	at, seen := map[key]int{}, map[string]struct{}{}
	for _, use := range memoryUsages {
		v.distinct(v.of[use], seen, func(s *tensor.Storage) {
			info := s.Memory().Device().Info()
			i, known := at[key{info.UUID, use}]
			if !known {
				i = len(list)
				at[key{info.UUID, use}] = i
				list = append(list, message.MemoryUse{Device: message.UUID(info.UUID), Type: int32(info.Type), Use: use})
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

// mapped returns the size of the memory in lists; each memory counts once.
func (v *memorySnapshot) mapped(lists [][]*tensor.Storage) (bytes uint64) {
	v.distinct(lists, map[string]struct{}{}, func(s *tensor.Storage) { bytes += uint64(s.Bytes()) })
	return bytes
}

// Maximum numbers of references reported for one session and for all. With many sessions, fewer are reported for each.
const (
	listedReferences    = 16
	listedReferencesAll = 4096
)

// add adds a reference. Only the largest are kept.
func (h *heldObjects) add(r message.Reference) {
	h.refs += r.Refs
	h.largest = append(h.largest, r)
	if len(h.largest) >= 4*listedReferences {
		h.largest = largestReferences(h.largest, listedReferences)
	}
}

// largestReferences returns the n largest references, largest first.
func largestReferences(list []message.Reference, n int) []message.Reference {
	slices.SortFunc(list, func(a, b message.Reference) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.ID, b.ID))
	})
	return list[:min(len(list), n)]
}
