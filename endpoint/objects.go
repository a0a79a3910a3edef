package endpoint

import (
	"fmt"
	"slices"
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
	outcomes []*outcome     // of the tasks whose result it is
	refs     map[uint64]int // by session
	total    int
	accessed time.Time
}

// objects are a server's managed objects.
type objects struct {
	mu   sync.Mutex
	byID map[string]*object
	of   map[*result]*object
	held map[uint64]int // references by session
}

// refer returns the object of a result, made if there is none yet, with one reference more for the session. The caller has a reference
// to the result. limit is how many references the session may have.
func (o *objects) refer(r *result, d *definition, key cache.Key, cached bool, of *outcome, session uint64, limit int) (*object, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byID == nil {
		o.byID, o.of, o.held = map[string]*object{}, map[*result]*object{}, map[uint64]int{}
	}
	if err := o.roomLocked(session, limit); err != nil {
		return nil, err
	}
	obj := o.of[r]
	if obj == nil {
		obj = &object{
			id: newID(), endpoint: d.name, key: key, cached: cached, result: r.retain(), created: time.Now(), refs: map[uint64]int{},
		}
		o.byID[obj.id], o.of[r] = obj, obj
	}
	if of != nil && !slices.Contains(obj.outcomes, of) {
		obj.outcomes = append(obj.outcomes, of)
	}
	o.addLocked(obj, session)
	return obj, nil
}

// referAgain gives the session one reference more to an object that there is.
func (o *objects) referAgain(id string, session uint64, limit int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	obj := o.byID[id]
	if obj == nil {
		return fmt.Errorf("object %q: %w", id, ErrStale)
	}
	if err := o.roomLocked(session, limit); err != nil {
		return err
	}
	o.addLocked(obj, session)
	return nil
}

func (o *objects) roomLocked(session uint64, limit int) error {
	if o.held[session] >= limit {
		return fmt.Errorf("%w: this client has %d references to managed objects", ErrLimit, limit)
	}
	return nil
}

func (o *objects) addLocked(obj *object, session uint64) {
	obj.refs[session]++
	obj.total++
	obj.accessed = time.Now()
	o.held[session]++
}

// takeLocked takes n references of the session back.
func (o *objects) takeLocked(obj *object, session uint64, n int) {
	obj.total -= n
	if obj.refs[session] -= n; obj.refs[session] == 0 {
		delete(obj.refs, session)
	}
	if o.held[session] -= n; o.held[session] == 0 {
		delete(o.held, session)
	}
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
	o.takeLocked(obj, session, 1)
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
			o.takeLocked(obj, session, n)
			if o.dropLocked(obj) {
				gone = append(gone, obj)
			}
		}
	}
	return gone
}

// destroy forgets an object whatever references there are, and returns the sessions that had some.
func (o *objects) destroy(id string) (obj *object, sessions []uint64, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if obj = o.byID[id]; obj == nil {
		return nil, nil, fmt.Errorf("object %q: %w", id, ErrStale)
	}
	for session, n := range obj.refs {
		sessions = append(sessions, session)
		o.takeLocked(obj, session, n)
	}
	o.dropLocked(obj)
	return obj, sessions, nil
}

// DestroyObject drops a managed object whatever references there are: they become stale, and their holders are told. What they
// have mapped stays theirs. Errors: [ErrStale] for one that is not there.
func (s *Server) DestroyObject(id string) error {
	obj, holders, err := s.objects.destroy(id)
	if err != nil {
		return err
	}
	s.letGo(obj)
	for _, ses := range s.sessionsOf(holders) {
		ses.objectGone(id)
	}
	s.loseReferences(id)
	s.log.Info("object destroyed", "object", id, "endpoint", obj.endpoint, "sessions", len(holders))
	return nil
}

// sessionsOf are the sessions with those numbers that there are.
func (s *Server) sessionsOf(ids []uint64) []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*session
	for _, id := range ids {
		if ses := s.sessions[id]; ses != nil {
			list = append(list, ses)
		}
	}
	return list
}

// letGo gives back what an object without references held, and what tasks kept of it: who calls the endpoint next gets a new one.
func (s *Server) letGo(obj *object) {
	for _, o := range obj.outcomes { // nobody else has the object any more
		o.drop()
	}
	if obj.cached {
		s.discard(obj.key, obj.result)
	}
	obj.result.release()
}

// discard drops a result from the cache, if it is still the one under its key.
func (s *Server) discard(key cache.Key, r *result) {
	if ref, ok := s.results.Lookup(key); ok {
		if ref.Value() == r {
			ref.Discard()
		}
		ref.Close()
	}
}
