package message

// Task names a task.
type Task struct {
	// ID is the task.
	ID string `cbor:"1,keyasint"`
	// After makes [OpTaskWait] also return at the first change after this number; 0 means at the end only.
	After uint64 `cbor:"2,keyasint,omitempty"`
}

// TaskInfo describes a task.
type TaskInfo struct {
	// ID is the task.
	ID string `cbor:"1,keyasint"`
	// Endpoint is the endpoint that runs.
	Endpoint string `cbor:"2,keyasint"`
	// State is "pending", "running", "completed", "failed" or "cancelled".
	State string `cbor:"3,keyasint"`
	// Seq counts the changes of the task.
	Seq uint64 `cbor:"4,keyasint"`
	// CreatedAt is the time of submission, in nanoseconds since 1970, UTC.
	CreatedAt int64 `cbor:"5,keyasint"`
	// StartedAt is the time when its function started; 0 before.
	StartedAt int64 `cbor:"6,keyasint,omitempty"`
	// FinishedAt is the time when it ended; 0 before.
	FinishedAt int64 `cbor:"7,keyasint,omitempty"`
	// Done is the progress in units of the endpoint.
	Done int64 `cbor:"8,keyasint,omitempty"`
	// Total is the total amount; 0 if unknown.
	Total int64 `cbor:"9,keyasint,omitempty"`
	// Message is the progress as text.
	Message string `cbor:"10,keyasint,omitempty"`
	// Error is why the task failed or was cancelled, otherwise nil.
	Error *Error `cbor:"11,keyasint,omitempty"`
	// Session is the session that submitted it.
	Session uint64 `cbor:"12,keyasint,omitempty"`
	// Object is the managed object of its result; empty until it is fetched as one, and for other results.
	Object string `cbor:"13,keyasint,omitempty"`
	// Label is the label of the submission; empty if it had none.
	Label string `cbor:"14,keyasint,omitempty"`
}

// FeatureTaskLabels is the feature of servers that keep the labels of tasks ([Call].Label).
const FeatureTaskLabels = "task-labels"

// MaxTaskLabel is the maximum size of a task's label in bytes. A server refuses a longer one.
const MaxTaskLabel = 256

// TaskCancelled answers [OpTaskCancel].
type TaskCancelled struct {
	// Cancelled is false if the task had finished.
	Cancelled bool `cbor:"1,keyasint,omitempty"`
}

// Tasks requests tasks. Empty fields select all.
type Tasks struct {
	// States are the states to select.
	States []string `cbor:"1,keyasint,omitempty"`
	// Endpoint is the endpoint to select.
	Endpoint string `cbor:"2,keyasint,omitempty"`
	// Mine selects the tasks of the requesting session.
	Mine bool `cbor:"3,keyasint,omitempty"`
}

// TasksListed answers [OpTasks].
type TasksListed struct {
	// Tasks is in the order of submission.
	Tasks []TaskInfo `cbor:"1,keyasint"`
}

// WatchTasks requests events of tasks. Empty fields select all.
type WatchTasks struct {
	// ID is the task to select.
	ID string `cbor:"1,keyasint,omitempty"`
	// Endpoint is the endpoint to select.
	Endpoint string `cbor:"2,keyasint,omitempty"`
	// Mine selects the tasks of the requesting session.
	Mine bool `cbor:"3,keyasint,omitempty"`
}

// WatchingTasks answers [OpTaskWatch]. Event frames with the ID of the request may follow.
type WatchingTasks struct{}

// TaskEventKind is the kind of a [TaskEvent].
type TaskEventKind uint8

// The kinds of events of tasks. Numbers are stable; a client ignores those it does not know.
const (
	// TaskListed describes an existing task: at the beginning of a watch, and after TasksMissed.
	TaskListed TaskEventKind = 1
	// TaskChanged describes a new task, or a change of state or progress.
	TaskChanged TaskEventKind = 2
	// TasksMissed means that changes were lost because the reader is slow. All tasks are listed again.
	TasksMissed TaskEventKind = 3
)

// TaskEvent reports a task to a watch. A slow reader receives every change of state, up to a limit, and the newest
// progress of each task.
type TaskEvent struct {
	// Kind is the kind of the event.
	Kind TaskEventKind `cbor:"1,keyasint"`
	// Task is the task; nil for TasksMissed.
	Task *TaskInfo `cbor:"2,keyasint,omitempty"`
}
