package endpoint

import (
	"fmt"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/cache"
	"github.com/sharedtensor/sharedtensor/wire"
)

// object is a managed result: the server keeps it as long as any session has a reference.
type object struct {
	id       string
	endpoint string
	key      cache.Key // where it is cached, if cached is set
	cached   bool
	result   *result // the object has a reference
	created  time.Time

	// Guarded by objects.mu.
	refs     map[uint64]int // by session
	total    int
	accessed time.Time
}

// objects are a server's managed objects.
type objects struct {
	mu   sync.Mutex
	byID map[string]*object
	of   map[*result]*object
}

// refer returns the object of a result, made if there is none yet, with one reference more for the session. The caller has a reference
// to the result.
func (o *objects) refer(r *result, d *definition, key cache.Key, cached bool, session uint64) *object {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byID == nil {
		o.byID, o.of = map[string]*object{}, map[*result]*object{}
	}
	obj := o.of[r]
	if obj == nil {
		obj = &object{
			id: newID(), endpoint: d.name, key: key, cached: cached, result: r.retain(), created: time.Now(), refs: map[uint64]int{},
		}
		o.byID[obj.id], o.of[r] = obj, obj
	}
	obj.refs[session]++
	obj.total++
	obj.accessed = time.Now()
	return obj
}

// release takes one reference of the session back and returns how many are left in all. With none the object is gone, and the caller lets
// go of it. A session that has no reference is refused: nobody gives back what is another's.
func (o *objects) release(id string, session uint64) (obj *object, left int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	obj = o.byID[id]
	if obj == nil {
		return nil, 0, fmt.Errorf("object %q: %w", id, ErrStale)
	}
	if obj.refs[session] == 0 {
		return nil, 0, fmt.Errorf("%w: this session has no reference to object %q", ErrPermission, id)
	}
	obj.total--
	if obj.refs[session]--; obj.refs[session] == 0 {
		delete(obj.refs, session)
	}
	o.dropLocked(obj)
	return obj, obj.total, nil
}

// info describes an object to a session.
func (o *objects) info(id string, session uint64) (wire.ObjectInfo, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	obj := o.byID[id]
	if obj == nil {
		return wire.ObjectInfo{}, fmt.Errorf("object %q: %w", id, ErrStale)
	}
	info := wire.ObjectInfo{
		ID: obj.id, Endpoint: obj.endpoint, Refs: uint64(obj.total), Mine: uint64(obj.refs[session]),
		Bytes: uint64(obj.result.payload.bytes()), CreatedAt: obj.created.UnixNano(), AccessedAt: obj.accessed.UnixNano(),
	}
	if obj.cached {
		info.CacheKey = obj.key.String()
	}
	return info, nil
}

// dropLocked forgets an object without references.
func (o *objects) dropLocked(obj *object) bool {
	if obj.total > 0 {
		return false
	}
	delete(o.byID, obj.id)
	delete(o.of, obj.result)
	return true
}

// releaseSession takes all references of a session back and returns the objects that are gone with them.
func (o *objects) releaseSession(session uint64) (gone []*object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, obj := range o.byID {
		if n := obj.refs[session]; n > 0 {
			obj.total -= n
			delete(obj.refs, session)
			if o.dropLocked(obj) {
				gone = append(gone, obj)
			}
		}
	}
	return gone
}

// letGo gives back what an object without references held: who calls the endpoint next gets a new one.
func (s *Server) letGo(obj *object) {
	if obj.cached {
		if ref, ok := s.results.Lookup(obj.key); ok {
			if ref.Value() == obj.result {
				ref.Discard()
			}
			ref.Close()
		}
	}
	obj.result.release()
}
