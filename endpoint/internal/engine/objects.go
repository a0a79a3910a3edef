package engine

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Object is a managed result: the server keeps it while any session holds a reference. The engine ends it with its last
// reference or when it is destroyed.
type Object struct {
	ID       string    // unique within the life of the server
	Endpoint string    // the endpoint that returned it
	Result   ResultRef // the object's own reference
	created  time.Time
	number   uint64 // in order of creation

	// Guarded by objects.mu.
	outcomes map[*Outcome]struct{} // of the tasks that keep the object as their result
	Refs     map[uint64]refList    // by session
	total    int
	accessed time.Time
}

// refList holds the references of one session to an object, at least one.
type refList struct {
	Tokens []uint64 // of the references, in ascending order
	since  time.Time
}

// objects holds the managed objects of a server.
type objects struct {
	server string        // id of the server
	memory *resultMemory // counts the results that sessions reference

	Mu   sync.Mutex
	byID map[string]*Object
	held map[uint64]*sessionRefs // by session
	last uint64                  // last token that was issued
}

// sessionRefs holds the objects that a session references, at least one.
type sessionRefs struct {
	refs    int
	objects map[*Object]struct{}
}

// missing returns the error for an object that does not exist.
func (o *objects) missing(id string) error {
	return &status.StaleError{ObjectID: id, ServerID: o.server, Reason: status.StaleObjectMissing}
}

// Refer adds a reference of the session to the object of a result, and creates the object if needed. It returns the
// object and the token of the reference. The caller must hold a reference to the result. limit is the maximum number of
// references of the session.
func (o *objects) Refer(r ResultRef, d *Definition, of *Outcome, session uint64, limit int) (*Object, uint64, error) {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	if o.byID == nil {
		o.byID, o.held = map[string]*Object{}, map[uint64]*sessionRefs{}
	}
	if err := o.roomLocked(session, limit); err != nil {
		return nil, 0, err
	}
	if err := o.countLocked(r.Result, session); err != nil {
		return nil, 0, err
	}
	obj := r.object
	if obj == nil {
		obj = &Object{
			ID: transfer.NewID(), Endpoint: d.Name, Result: r.clone(), created: time.Now(), number: o.last + 1, Refs: map[uint64]refList{},
			outcomes: map[*Outcome]struct{}{},
		}
		o.byID[obj.ID], r.object = obj, obj
	}
	if of != nil && of.keeps() { // from now on, drop removes the outcome from the set
		obj.outcomes[of] = struct{}{}
		of.object = obj
	}
	return obj, o.addLocked(obj, session), nil
}

// ReferAgain adds a reference of the session to an existing object and returns its token.
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
		return status.Exceeded(status.LimitObjects, "this client has %d references to managed objects", limit)
	}
	return nil
}

// countLocked counts the memory of a result before the session's first reference to it.
func (o *objects) countLocked(r *Result, session uint64) error {
	if obj := r.object; obj != nil && len(obj.Refs[session].Tokens) > 0 {
		return nil
	}
	return o.memory.Add(session, r)
}

// addLocked adds a reference for the session and returns its token.
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

// takeLocked removes the session's reference at index at and returns its token.
func (o *objects) takeLocked(obj *Object, session uint64, at int) uint64 {
	h := obj.Refs[session]
	token := h.Tokens[at]
	if at == 0 { // the common case, which moves nothing
		h.Tokens = h.Tokens[1:]
	} else {
		h.Tokens = slices.Delete(h.Tokens, at, at+1)
	}
	o.keepLocked(obj, session, h, 1)
	return token
}

// takeAllLocked removes all references of the session and reports whether there were any.
func (o *objects) takeAllLocked(obj *Object, session uint64) bool {
	n := len(obj.Refs[session].Tokens)
	if n > 0 {
		o.keepLocked(obj, session, refList{}, n)
	}
	return n > 0
}

// keepLocked stores the remaining references h of the session after n were removed.
func (o *objects) keepLocked(obj *Object, session uint64, h refList, n int) {
	obj.total -= n
	obj.Refs[session] = h
	mine := o.held[session]
	if len(h.Tokens) == 0 {
		delete(obj.Refs, session)
		delete(mine.objects, obj)
		o.memory.Remove(session, obj.Result.Result)
	}
	if mine.refs -= n; mine.refs == 0 {
		delete(o.held, session)
	}
}

// released describes a reference that was released.
type released struct {
	object *Object
	Token  uint64
	Left   int // remaining references of all sessions, also set on errors
}

// release removes a reference of the session: the reference with that token, or the oldest if token is 0. If no references
// remain, the object is removed and the engine ends it. It returns an error if the session does not hold the
// reference.
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

// dropLocked removes an object without references.
func (o *objects) dropLocked(obj *Object) bool {
	if obj.total > 0 {
		return false
	}
	delete(o.byID, obj.ID)
	obj.Result.object = nil
	return true
}

// releaseSession removes all references of a session. It returns the objects that were removed as a result.
func (o *objects) releaseSession(session uint64) (gone []*Object) {
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

// HeldBy returns the number of references that the session holds.
func (o *objects) HeldBy(session uint64) int {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	if h := o.held[session]; h != nil {
		return h.refs
	}
	return 0
}

// destroy removes an object regardless of its references. It returns the object, the sessions that held references, and
// its description.
func (o *objects) destroy(id string) (obj *Object, sessions []uint64, was message.ObjectInfo, err error) {
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

// takeOutcomes detaches the outcomes from an object that was removed, and returns them.
func (o *objects) takeOutcomes(obj *Object) map[*Outcome]struct{} {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	all := obj.outcomes
	obj.outcomes = nil
	return all
}

// dropOutcome detaches an outcome that has dropped its reference from its object, if any.
func (o *objects) dropOutcome(of *Outcome) {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	if of.object != nil {
		delete(of.object.outcomes, of)
	}
}

// ReleaseReference releases a reference of a session, and ends the object if it was the last one.
func (e *Engine) ReleaseReference(id string, token, session uint64) (released, error) {
	was, err := e.Objects.release(id, token, session)
	if err == nil && was.Left == 0 {
		e.end(was.object)
	}
	return was, err
}

// ReleaseSession releases all references of a session that has ended, and ends the objects without other references.
func (e *Engine) ReleaseSession(session uint64) {
	for _, obj := range e.Objects.releaseSession(session) {
		e.end(obj)
	}
}

// Destroy ends an object regardless of its references. It returns the sessions that held references, and its last
// description.
func (e *Engine) Destroy(id string) (holders []uint64, was message.ObjectInfo, err error) {
	obj, holders, was, err := e.Objects.destroy(id)
	if err == nil {
		e.end(obj)
	}
	return holders, was, err
}

// SetObject records that the result of a task is obj.
func (e *Engine) SetObject(of *Outcome, obj *Object) {
	if of == nil {
		return
	}
	if t, err := e.Tasks.Get(of.task); err == nil {
		t.SetNote(obj.ID)
	}
}

// end releases the result of a removed object, including the references of tasks, and discards it from the cache. The next
// call of the endpoint runs the function again. It is called once for each object, without a lock.
func (e *Engine) end(obj *Object) {
	for o := range e.Objects.takeOutcomes(obj) {
		if t, err := e.Tasks.Get(o.task); err == nil {
			_ = t.Discard() // the task has ended
		}
	}
	obj.Result.Discard()
	obj.Result.Release()
}

// Each calls visit for every object, with the objects locked.
func (o *objects) Each(visit func(*Object)) {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	for _, obj := range o.byID {
		visit(obj)
	}
}

// Count returns the number of objects.
func (o *objects) Count() int {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	return len(o.byID)
}

// OutcomeCount returns the number of tasks that keep an object as their result.
func (o *objects) OutcomeCount(id string) int {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	if obj := o.byID[id]; obj != nil {
		return len(obj.outcomes)
	}
	return 0
}
