package message

// Task names a task.
type Task struct {
	// ID is the task.
	ID string `cbor:"1,keyasint"`
	// After makes [OpTaskWait] answer at the first change after this number too, not only at the end; 0 for the end
	// only.
	After uint64 `cbor:"2,keyasint,omitempty"`
}

// TaskInfo describes a task.
type TaskInfo struct {
	// ID is the task.
	ID string `cbor:"1,keyasint"`
	// Endpoint is what runs.
	Endpoint string `cbor:"2,keyasint"`
	// State is "pending", "running", "completed", "failed" or "cancelled".
	State string `cbor:"3,keyasint"`
	// Seq counts the changes of the task.
	Seq uint64 `cbor:"4,keyasint"`
	// CreatedAt is when it was submitted, in nanoseconds since 1970, UTC.
	CreatedAt int64 `cbor:"5,keyasint"`
	// StartedAt is when its function began; 0 if it has not.
	StartedAt int64 `cbor:"6,keyasint,omitempty"`
	// FinishedAt is when it ended; 0 if it has not.
	FinishedAt int64 `cbor:"7,keyasint,omitempty"`
	// Done is the progress, in units of the endpoint's own.
	Done int64 `cbor:"8,keyasint,omitempty"`
	// Total is how much there is to do; 0 where that is not known.
	Total int64 `cbor:"9,keyasint,omitempty"`
	// Message is the progress in words.
	Message string `cbor:"10,keyasint,omitempty"`
	// Error is why the task failed or was cancelled; nil for others.
	Error *Error `cbor:"11,keyasint,omitempty"`
	// Session is the session that submitted it.
	Session uint64 `cbor:"12,keyasint,omitempty"`
	// Object is the managed object that its result is; empty while nobody has fetched it as one, and for other results.
	Object string `cbor:"13,keyasint,omitempty"`
}

// TaskCancelled answers [OpTaskCancel].
type TaskCancelled struct {
	// Cancelled is false for a task that had finished.
	Cancelled bool `cbor:"1,keyasint,omitempty"`
}

// Tasks asks for tasks. Empty fields select all.
type Tasks struct {
	// States are the states to select.
	States []string `cbor:"1,keyasint,omitempty"`
	// Endpoint is the endpoint to select.
	Endpoint string `cbor:"2,keyasint,omitempty"`
	// Mine selects those that the asking session submitted.
	Mine bool `cbor:"3,keyasint,omitempty"`
}

// TasksListed answers [OpTasks].
type TasksListed struct {
	// Tasks are they, in the order of their submission.
	Tasks []TaskInfo `cbor:"1,keyasint"`
}

// WatchTasks asks to be told of tasks. Empty fields select all.
type WatchTasks struct {
	// ID is the task to select.
	ID string `cbor:"1,keyasint,omitempty"`
	// Endpoint is the endpoint to select.
	Endpoint string `cbor:"2,keyasint,omitempty"`
	// Mine selects those that the asking session submitted.
	Mine bool `cbor:"3,keyasint,omitempty"`
}

// WatchingTasks answers [OpTaskWatch]. From now on event frames with the ID of the request may come.
type WatchingTasks struct{}

// TaskEventKind says what a [TaskEvent] is.
type TaskEventKind uint8

// The kinds of events of tasks. Numbers are stable; a client ignores those it does not know.
const (
	// TaskListed is a task as it is: at the beginning of a watch, and after TasksMissed.
	TaskListed TaskEventKind = 1
	// TaskChanged is a task that has come, or whose state or progress has changed.
	TaskChanged TaskEventKind = 2
	// TasksMissed says that there were more changes than the server keeps for a slow reader: some of them are lost. All
	// tasks are listed again.
	TasksMissed TaskEventKind = 3
)

// TaskEvent tells of a task to a watch. A slow reader gets every change of state, until there are too many, and the
// newest progress of each.
type TaskEvent struct {
	// Kind says what it is.
	Kind TaskEventKind `cbor:"1,keyasint"`
	// Task is the task; nil where Kind is of none.
	Task *TaskInfo `cbor:"2,keyasint,omitempty"`
}
