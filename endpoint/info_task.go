package endpoint

import (
	"encoding/json"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// TaskState is where a task stands.
//
//	pending ──> running ──> completed
//	   │           ├──────> failed
//	   └───────────┴──────> cancelled
type TaskState string

// The states of tasks.
const (
	// TaskPending is a task that waits for a worker.
	TaskPending TaskState = "pending"
	// TaskRunning is a task whose function runs.
	TaskRunning TaskState = "running"
	// TaskCompleted is a task whose function returned a result.
	TaskCompleted TaskState = "completed"
	// TaskFailed is a task whose function returned an error, or panicked.
	TaskFailed TaskState = "failed"
	// TaskCancelled is a task that was cancelled.
	TaskCancelled TaskState = "cancelled"
)

// Terminal reports whether a task stays in this state.
func (s TaskState) Terminal() bool {
	return s == TaskCompleted || s == TaskFailed || s == TaskCancelled
}

// TaskInfo describes a task at one moment. Its names in JSON are those of shared-tensor 0.2, with object_id as one of
// them and not within metadata; what is read from JSON has an Err again.
type TaskInfo struct {
	// ID names the task; it cannot be guessed.
	ID string `json:"task_id"`
	// Endpoint is what runs.
	Endpoint string `json:"endpoint"`
	// State is where it stands.
	State TaskState `json:"status"`
	// Seq counts the changes of its state and progress.
	Seq uint64 `json:"seq"`
	// CreatedAt is when it was submitted.
	CreatedAt time.Time `json:"created_at"`
	// StartedAt is when its function was called; zero if it was not.
	StartedAt time.Time `json:"started_at,omitzero"`
	// FinishedAt is when it ended; zero if it has not.
	FinishedAt time.Time `json:"completed_at,omitzero"`
	// Done and Total are its progress in units of the endpoint's own; Total is 0 where it is not known.
	Done  int64 `json:"done,omitempty"`
	Total int64 `json:"total,omitempty"`
	// Message is its progress in words.
	Message string `json:"message,omitempty"`
	// ErrorType is what kind of error it failed with or was cancelled for: a word of the table in wire/PROTOCOL.md,
	// such as "out of memory", or the owner's Go type of an error that has none. Error says it in a sentence.
	ErrorType string `json:"error_type,omitempty"`
	Error     string `json:"error_message,omitempty"`
	// Session is the session that submitted it.
	Session uint64 `json:"session,omitempty"`
	// ObjectID is the managed object that its result is, or was; empty while nobody has fetched it as one, and for
	// other results.
	ObjectID string `json:"object_id,omitempty"`

	err error
}

// Err is nil for a task that has not failed and was not cancelled; else why, answering errors.Is for task.ErrFailed or
// task.ErrCancelled, and for what the function returned.
func (t TaskInfo) Err() error { return t.err }

// UnmarshalJSON reads what the JSON of a TaskInfo says, and makes Err of it as far as the words go.
func (t *TaskInfo) UnmarshalJSON(data []byte) error {
	type plain TaskInfo
	if err := json.Unmarshal(data, (*plain)(t)); err != nil {
		return err
	}
	t.err = nil
	if t.State != TaskFailed && t.State != TaskCancelled {
		return nil
	}
	e := &message.Error{Code: message.CodeTask, Type: string(t.State), Message: t.Error}
	t.err = status.Codes.Decode(e, status.Codes.Named(t.ErrorType)...)
	return nil
}

// TaskFilter selects tasks. The zero value selects all.
type TaskFilter struct {
	// States, if there are any, selects tasks in one of them.
	States []TaskState
	// Endpoint, if not empty, selects tasks of that endpoint.
	Endpoint string
	// Mine selects the tasks that were submitted on this connection.
	Mine bool
}

// decodeTask is what a caller makes of a task that crossed.
func decodeTask(in message.TaskInfo) TaskInfo {
	out := TaskInfo{
		ID: in.ID, Endpoint: in.Endpoint, State: TaskState(in.State), Seq: in.Seq,
		CreatedAt: fromNanos(in.CreatedAt), StartedAt: fromNanos(in.StartedAt), FinishedAt: fromNanos(in.FinishedAt),
		Done: in.Done, Total: in.Total, Message: in.Message, Session: in.Session, ObjectID: in.Object,
	}
	if in.Error != nil {
		out.err = status.DecodeError(in.Error)
		out.ErrorType, out.Error = in.Error.Type, in.Error.Message
		if cause := in.Error.Details().Cause; cause != nil {
			out.ErrorType = cause.Type
		}
	}
	return out
}

// fromNanos is a time that crossed; 0 is the zero time.
func fromNanos(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}
