package engine

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Object is a managed result: the server keeps it as long as any session has a reference.
type Object struct {
	ID       string    // within the life of the server
	Endpoint string    // that made it
	Result   ResultRef // the object's own
	created  time.Time
	number   uint64 // in the order in which objects were made

	// Guarded by objects.mu.
	outcomes map[*Outcome]struct{} // of the tasks that keep it as their result
	Refs     map[uint64]refList    // by session
	total    int
	accessed time.Time
}

// refList is what a session has of an object: at least one reference.
type refList struct {
	Tokens []uint64 // of the references, ascending
	since  time.Time
}

// objects are a server's managed objects.
type objects struct {
	server string        // its id
	memory *resultMemory // counts what sessions have references to

	Mu   sync.Mutex
	byID map[string]*Object
	of   map[*Result]*Object
	held map[uint64]*sessionRefs // by session
	last uint64                  // the token that was given out last
}

// sessionRefs are what a session has references to: at least one object.
type sessionRefs struct {
	refs    int
	objects map[*Object]struct{}
}

// missing is the error of an object that is not there.
func (o *objects) missing(id string) error {
	return &status.StaleError{ObjectID: id, ServerID: o.server, Reason: status.StaleObjectMissing}
}

// Refer returns the object of a result, made if there is none yet, with one reference more for the session, and the
// token of that. The caller has a reference to the result. limit is how many references the session may have.
func (o *objects) Refer(r ResultRef, d *Definition, of *Outcome, session uint64, limit int) (*Object, uint64, error) {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	if o.byID == nil {
		o.byID, o.of, o.held = map[string]*Object{}, map[*Result]*Object{}, map[uint64]*sessionRefs{}
	}
	if err := o.roomLocked(session, limit); err != nil {
		return nil, 0, err
	}
	if err := o.countLocked(r.Result, session); err != nil {
		return nil, 0, err
	}
	obj := o.of[r.Result]
	if obj == nil {
		obj = &Object{
			ID: transfer.NewID(), Endpoint: d.Name, Result: r.again(), created: time.Now(), number: o.last + 1, Refs: map[uint64]refList{},
			outcomes: map[*Outcome]struct{}{},
		}
		o.byID[obj.ID], o.of[r.Result] = obj, obj
	}
	if of != nil && of.keeps() { // one that is dropped from here on finds itself in the set
		obj.outcomes[of] = struct{}{}
		of.object = obj
	}
	return obj, o.addLocked(obj, session), nil
}

// ReferAgain gives the session one reference more to an object that there is, and returns its token.
func (o *objects) ReferAgain(id string, session uint64, limit int) (uint64, error) {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	obj := o.byID[id]
	if obj == nil {
		return 0, o.missing(id)
	}
	if err := o.roomLocked(session, limit); err != nil {
		return 0, err
	}
	if err := o.countLocked(obj.Result.Result, session); err != nil {
		return 0, err
	}
	return o.addLocked(obj, session), nil
}

func (o *objects) roomLocked(session uint64, limit int) error {
	if h := o.held[session]; h != nil && h.refs >= limit {
		return limits.Exceeded(limits.Objects, "this client has %d references to managed objects", limit)
	}
	return nil
}

// countLocked counts the memory of a result of which the session is about to have its first reference.
func (o *objects) countLocked(r *Result, session uint64) error {
	if obj := o.of[r]; obj != nil && len(obj.Refs[session].Tokens) > 0 {
		return nil
	}
	return o.memory.Take(session, r)
}

// addLocked gives the session one reference more and returns its token.
func (o *objects) addLocked(obj *Object, session uint64) uint64 {
	now := time.Now()
	o.last++
	h := obj.Refs[session]
	if len(h.Tokens) == 0 {
		h.since = now
	}
	h.Tokens = append(h.Tokens, o.last)
	obj.Refs[session] = h
	obj.total++
	obj.accessed = now
	mine := o.held[session]
	if mine == nil {
		mine = &sessionRefs{objects: map[*Object]struct{}{}}
		o.held[session] = mine
	}
	mine.refs++
	mine.objects[obj] = struct{}{}
	return o.last
}

// takeLocked takes the reference at a place among those of the session back, and returns its token.
func (o *objects) takeLocked(obj *Object, session uint64, at int) uint64 {
	h := obj.Refs[session]
	token := h.Tokens[at]
	if at == 0 { // as a rule; then nothing is moved
		h.Tokens = h.Tokens[1:]
	} else {
		h.Tokens = slices.Delete(h.Tokens, at, at+1)
	}
	o.keepLocked(obj, session, h, 1)
	return token
}

// takeAllLocked takes all references of the session back and reports whether there were any.
func (o *objects) takeAllLocked(obj *Object, session uint64) bool {
	n := len(obj.Refs[session].Tokens)
	if n > 0 {
		o.keepLocked(obj, session, refList{}, n)
	}
	return n > 0
}

// keepLocked notes what the session still has of an object after n references were taken back.
func (o *objects) keepLocked(obj *Object, session uint64, h refList, n int) {
	obj.total -= n
	obj.Refs[session] = h
	mine := o.held[session]
	if len(h.Tokens) == 0 {
		delete(obj.Refs, session)
		delete(mine.objects, obj)
		o.memory.Give(session, obj.Result.Result)
	}
	if mine.refs -= n; mine.refs == 0 {
		delete(o.held, session)
	}
}

// released is a reference that was taken back.
type released struct {
	object *Object
	Token  uint64
	Left   int // references of all sessions, also where none was taken back
}

// release takes a reference of the session back: that with the token, or for 0 the oldest. With none left the object is
// gone, and the caller lets go of it. A session that does not have the reference is refused: nobody gives back what is
// another's, or was given back before.
func (o *objects) release(id string, token, session uint64) (released, error) {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	obj := o.byID[id]
	if obj == nil {
		return released{}, o.missing(id)
	}
	tokens := obj.Refs[session].Tokens
	at, found := 0, len(tokens) > 0
	if token != 0 {
		at, found = slices.BinarySearch(tokens, token)
	}
	if !found {
		return released{Left: obj.total}, fmt.Errorf("%w: this session has no such reference to object %s", status.ErrPermission, status.Shown(id))
	}
	token = o.takeLocked(obj, session, at)
	o.dropLocked(obj)
	return released{obj, token, obj.total}, nil
}

// dropLocked forgets an object without references.
func (o *objects) dropLocked(obj *Object) bool {
	if obj.total > 0 {
		return false
	}
	delete(o.byID, obj.ID)
	delete(o.of, obj.Result.Result)
	return true
}

// ReleaseSession takes all references of a session back and returns the objects that are gone with them.
func (o *objects) ReleaseSession(session uint64) (gone []*Object) {
	o.Mu.Lock()
	defer o.Mu.Unlock()
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

// HeldBy is how many references the session has.
func (o *objects) HeldBy(session uint64) int {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	if h := o.held[session]; h != nil {
		return h.refs
	}
	return 0
}

// Destroy forgets an object whatever references there are, and returns the sessions that had some, and what it was.
func (o *objects) Destroy(id string) (obj *Object, sessions []uint64, was message.ObjectInfo, err error) {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	if obj = o.byID[id]; obj == nil {
		return nil, nil, was, o.missing(id)
	}
	was = obj.describeLocked(0)
	for session := range obj.Refs {
		sessions = append(sessions, session)
		o.takeAllLocked(obj, session)
	}
	o.dropLocked(obj)
	return obj, sessions, was, nil
}

// takeOutcomes returns the outcomes of an object that is gone, which then has none.
func (o *objects) takeOutcomes(obj *Object) map[*Outcome]struct{} {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	all := obj.outcomes
	obj.outcomes = nil
	return all
}

// dropOutcome takes an outcome that keeps nothing any more from its object, if it has one.
func (o *objects) dropOutcome(of *Outcome) {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	if of.object != nil {
		delete(of.object.outcomes, of)
	}
}

// ReleaseReference takes a reference of a session back, and lets go of an object that nobody refers to any more.
func (e *Engine) ReleaseReference(id string, token, session uint64) (released, error) {
	was, err := e.Objects.release(id, token, session)
	if err == nil && was.Left == 0 {
		e.Dispose(was.object)
	}
	return was, err
}

// NoteObject keeps with a task which object its result is.
func (e *Engine) NoteObject(of *Outcome, obj *Object) {
	if of == nil {
		return
	}
	if t, err := e.Tasks.Get(of.task); err == nil {
		t.SetNote(obj.ID)
	}
}

// Dispose gives back what an object without references held, and what tasks kept of it: who calls the endpoint next
// gets a new one.
func (e *Engine) Dispose(obj *Object) {
	for o := range e.Objects.takeOutcomes(obj) {
		if t, err := e.Tasks.Get(o.task); err == nil {
			_ = t.Discard() // it has ended
		}
	}
	obj.Result.Discard()
	obj.Result.Release()
}

// Each shows visit every object. The objects are locked meanwhile.
func (o *objects) Each(visit func(*Object)) {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	for _, obj := range o.byID {
		visit(obj)
	}
}

// Count is how many objects there are.
func (o *objects) Count() int {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	return len(o.byID)
}

// OutcomeCount is how many tasks keep an object as their result.
func (o *objects) OutcomeCount(id string) int {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	if obj := o.byID[id]; obj != nil {
		return len(obj.outcomes)
	}
	return 0
}
