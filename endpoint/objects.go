package endpoint

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// object is a managed result: the server keeps it as long as any session has a reference.
type object struct {
	id       string
	endpoint string
	result   grip // the object's own
	created  time.Time
	number   uint64 // in the order in which objects were made

	// Guarded by objects.mu.
	outcomes map[*outcome]struct{} // of the tasks that keep it as their result
	refs     map[uint64]holding    // by session
	total    int
	accessed time.Time
}

// holding is what a session has of an object: at least one reference.
type holding struct {
	tokens []uint64 // of the references, ascending
	since  time.Time
}

// objects are a server's managed objects.
type objects struct {
	server string        // its id
	memory *resultMemory // counts what sessions have references to

	mu   sync.Mutex
	byID map[string]*object
	of   map[*result]*object
	held map[uint64]*belongings // by session
	last uint64                 // the token that was given out last
}

// belongings are what a session has references to: at least one object.
type belongings struct {
	refs    int
	objects map[*object]struct{}
}

// missing is the error of an object that is not there.
func (o *objects) missing(id string) error {
	return &status.StaleError{ObjectID: id, ServerID: o.server, Reason: status.StaleObjectMissing}
}

// refer returns the object of a result, made if there is none yet, with one reference more for the session, and the token of that. The
// caller has a reference to the result. limit is how many references the session may have.
func (o *objects) refer(r grip, d *definition, of *outcome, session uint64, limit int) (*object, uint64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byID == nil {
		o.byID, o.of, o.held = map[string]*object{}, map[*result]*object{}, map[uint64]*belongings{}
	}
	if err := o.roomLocked(session, limit); err != nil {
		return nil, 0, err
	}
	if err := o.countLocked(r.result, session); err != nil {
		return nil, 0, err
	}
	obj := o.of[r.result]
	if obj == nil {
		obj = &object{
			id: transfer.NewID(), endpoint: d.name, result: r.again(), created: time.Now(), number: o.last + 1, refs: map[uint64]holding{},
			outcomes: map[*outcome]struct{}{},
		}
		o.byID[obj.id], o.of[r.result] = obj, obj
	}
	if of != nil && of.keeps() { // one that is dropped from here on finds itself in the set
		obj.outcomes[of] = struct{}{}
		of.object = obj
	}
	return obj, o.addLocked(obj, session), nil
}

// referAgain gives the session one reference more to an object that there is, and returns its token.
func (o *objects) referAgain(id string, session uint64, limit int) (uint64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	obj := o.byID[id]
	if obj == nil {
		return 0, o.missing(id)
	}
	if err := o.roomLocked(session, limit); err != nil {
		return 0, err
	}
	if err := o.countLocked(obj.result.result, session); err != nil {
		return 0, err
	}
	return o.addLocked(obj, session), nil
}

func (o *objects) roomLocked(session uint64, limit int) error {
	if h := o.held[session]; h != nil && h.refs >= limit {
		return over(limitObjects, "this client has %d references to managed objects", limit)
	}
	return nil
}

// countLocked counts the memory of a result of which the session is about to have its first reference.
func (o *objects) countLocked(r *result, session uint64) error {
	if obj := o.of[r]; obj != nil && len(obj.refs[session].tokens) > 0 {
		return nil
	}
	return o.memory.take(session, r)
}

// addLocked gives the session one reference more and returns its token.
func (o *objects) addLocked(obj *object, session uint64) uint64 {
	now := time.Now()
	o.last++
	h := obj.refs[session]
	if len(h.tokens) == 0 {
		h.since = now
	}
	h.tokens = append(h.tokens, o.last)
	obj.refs[session] = h
	obj.total++
	obj.accessed = now
	mine := o.held[session]
	if mine == nil {
		mine = &belongings{objects: map[*object]struct{}{}}
		o.held[session] = mine
	}
	mine.refs++
	mine.objects[obj] = struct{}{}
	return o.last
}

// takeLocked takes the reference at a place among those of the session back, and returns its token.
func (o *objects) takeLocked(obj *object, session uint64, at int) uint64 {
	h := obj.refs[session]
	token := h.tokens[at]
	if at == 0 { // as a rule; then nothing is moved
		h.tokens = h.tokens[1:]
	} else {
		h.tokens = slices.Delete(h.tokens, at, at+1)
	}
	o.keepLocked(obj, session, h, 1)
	return token
}

// takeAllLocked takes all references of the session back and reports whether there were any.
func (o *objects) takeAllLocked(obj *object, session uint64) bool {
	n := len(obj.refs[session].tokens)
	if n > 0 {
		o.keepLocked(obj, session, holding{}, n)
	}
	return n > 0
}

// keepLocked notes what the session still has of an object after n references were taken back.
func (o *objects) keepLocked(obj *object, session uint64, h holding, n int) {
	obj.total -= n
	obj.refs[session] = h
	mine := o.held[session]
	if len(h.tokens) == 0 {
		delete(obj.refs, session)
		delete(mine.objects, obj)
		o.memory.give(session, obj.result.result)
	}
	if mine.refs -= n; mine.refs == 0 {
		delete(o.held, session)
	}
}

// released is a reference that was taken back.
type released struct {
	object *object
	token  uint64
	left   int // references of all sessions, also where none was taken back
}

// release takes a reference of the session back: that with the token, or for 0 the oldest. With none left the object is gone, and the caller
// lets go of it. A session that does not have the reference is refused: nobody gives back what is another's, or was given back before.
func (o *objects) release(id string, token, session uint64) (released, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	obj := o.byID[id]
	if obj == nil {
		return released{}, o.missing(id)
	}
	tokens := obj.refs[session].tokens
	at, found := 0, len(tokens) > 0
	if token != 0 {
		at, found = slices.BinarySearch(tokens, token)
	}
	if !found {
		return released{left: obj.total}, fmt.Errorf("%w: this session has no such reference to object %s", status.ErrPermission, status.Shown(id))
	}
	token = o.takeLocked(obj, session, at)
	o.dropLocked(obj)
	return released{obj, token, obj.total}, nil
}

// dropLocked forgets an object without references.
func (o *objects) dropLocked(obj *object) bool {
	if obj.total > 0 {
		return false
	}
	delete(o.byID, obj.id)
	delete(o.of, obj.result.result)
	return true
}

// releaseSession takes all references of a session back and returns the objects that are gone with them.
func (o *objects) releaseSession(session uint64) (gone []*object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	mine := o.held[session]
	if mine == nil {
		return nil
	}
	for obj := range mine.objects {
		if o.takeAllLocked(obj, session) && o.dropLocked(obj) {
			gone = append(gone, obj)
		}
	}
	return gone
}

// heldBy is how many references the session has.
func (o *objects) heldBy(session uint64) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if h := o.held[session]; h != nil {
		return h.refs
	}
	return 0
}

// destroy forgets an object whatever references there are, and returns the sessions that had some, and what it was.
func (o *objects) destroy(id string) (obj *object, sessions []uint64, was message.ObjectInfo, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if obj = o.byID[id]; obj == nil {
		return nil, nil, was, o.missing(id)
	}
	was = obj.describeLocked(0)
	for session := range obj.refs {
		sessions = append(sessions, session)
		o.takeAllLocked(obj, session)
	}
	o.dropLocked(obj)
	return obj, sessions, was, nil
}

// DestroyObject drops a managed object whatever references there are: they become stale, and their holders are told. What they
// have mapped stays theirs. One that is not there is a [*StaleError].
func (s *Server) DestroyObject(id string) error {
	_, err := s.destroyObject(id, "")
	return err
}

// destroyObject drops an object and says why to those who had references, if it knows. It returns the object as it was.
func (s *Server) destroyObject(id, reason string) (message.ObjectInfo, error) {
	obj, holders, was, err := s.objects.destroy(id)
	if err != nil {
		return was, err
	}
	s.letGo(obj)
	for _, ses := range s.sessionsOf(holders) {
		ses.objectGone(id, reason)
	}
	s.log.Info("object destroyed", "object", id, "endpoint", obj.endpoint, "sessions", len(holders), "reason", reason)
	return was, nil
}

// sessionsOf are the sessions with those numbers that there are, this process's own among them.
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
	for o := range s.objects.takeOutcomes(obj) {
		if t, err := s.tasks.Get(o.task); err == nil {
			t.Discard() // it has ended
		}
	}
	obj.result.discard()
	obj.result.release()
}

// takeOutcomes returns the outcomes of an object that is gone, which then has none.
func (o *objects) takeOutcomes(obj *object) map[*outcome]struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := obj.outcomes
	obj.outcomes = nil
	return all
}

// dropOutcome takes an outcome that keeps nothing any more from its object, if it has one.
func (o *objects) dropOutcome(of *outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if of.object != nil {
		delete(of.object.outcomes, of)
	}
}
