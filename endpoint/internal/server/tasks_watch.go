package server

import (
	"context"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// tasksSource is the source of task events: first the existing tasks, then each change. The manager's subscription
// keeps all state changes up to a bound; beyond it the tasks are listed again.
type tasksSource struct {
	manager *task.Manager[*engine.Outcome]
	filter  task.Filter
	one     *task.Task[*engine.Outcome] // the task of filter.ID, also after the manager has dropped it
	changes *task.Subscription[*engine.Outcome]
	begun   bool
	sees    func(task.Status) bool // selects the tasks that the client may see; nil for all
	listed  map[string]uint64      // Seq of each task in the last list; nil if the last take listed nothing
}

// newSource returns the source for the tasks that a session watches. It fails if a single requested task does not
// exist.
func (o *taskOperations) newSource(in message.WatchTasks, session uint64) (*tasksSource, error) {
	t := &tasksSource{manager: o.manager, filter: task.Filter{ID: in.ID, Name: in.Endpoint}}
	if in.Endpoint != "" { // the filter lives as long as the watch
		if err := CheckName(in.Endpoint); err != nil {
			return nil, err
		}
	}
	if in.Mine {
		t.filter.Owner = session
	}
	if in.ID != "" {
		var err error
		if t.one, err = o.manager.Get(in.ID); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// Weight implements [session.Source]. A watch of all tasks can queue as many changes as a watch of all names.
func (t *tasksSource) Weight() int {
	if t.filter.ID != "" {
		return 1
	}
	return session.MaxNames
}

func (t *tasksSource) Open(wake func()) { t.changes = t.manager.Subscribe(t.filter, wake) }
func (t *tasksSource) Opening() bool    { return true }
func (t *tasksSource) Close()           { t.changes.Close() }

// Take implements [session.Source].
func (t *tasksSource) Take() (events []any) {
	tell := func(kind message.TaskEventKind, s task.Status) {
		if t.sees != nil && !t.sees(s) { // the policy may change during the watch
			return
		}
		info := encodeTask(s)
		events = append(events, message.TaskEvent{Kind: kind, Task: &info})
	}
	changes, complete := t.changes.Next()
	before := t.listed
	t.listed = nil
	if complete && t.begun {
		for _, s := range changes {
			if s.Seq > before[s.ID] { // later than the list
				tell(message.TaskChanged, s)
			}
		}
		return events
	}
	if t.begun {
		events = append(events, message.TaskEvent{Kind: message.TasksMissed})
	}
	t.begun, t.listed = true, map[string]uint64{}
	for _, s := range t.manager.List(t.filter) {
		t.listed[s.ID] = s.Seq
		tell(message.TaskListed, s)
	}
	for _, s := range changes {
		if _, known := t.listed[s.ID]; !known { // created and removed since the list
			tell(message.TaskChanged, s)
		}
	}
	// A task that ended and was dropped before the list would otherwise never be reported.
	if t.one != nil && len(t.listed) == 0 && len(changes) == 0 {
		tell(message.TaskListed, t.one.Status())
	}
	return events
}

// watch subscribes the session to changes of tasks.
func (o *taskOperations) watch(_ context.Context, r *session.Request) (session.Reply, error) {
	var in message.WatchTasks
	if err := r.Decode(&in); err != nil {
		return nil, err
	}
	from, err := o.newSource(in, r.Session.ID)
	if err != nil {
		return nil, err
	}
	if from.one != nil {
		if err := mayUse(r.Session, from.one.Status()); err != nil {
			return nil, err
		}
	}
	c := clientOf(r.Session)
	from.sees = func(t task.Status) bool { return t.Owner == c.session.ID || c.allowed(access.Call, t.Name) }
	return subscribe(r, from, message.WatchingTasks{})
}
